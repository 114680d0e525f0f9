// Steps that the device plans: the host's bytes, right results, graphs of plan and layers, refusals on both sides.
#include "kvloom/api/kvloom_device_plan.h"
#include "kvloom/runtime/launch_plan.h"
#include "tests/cuda/device_arrays.h"
#include "tests/cuda/engine_fixture.h"
#include "tests/plan/device_steps.h"

#include <cmath>

namespace kvloom::test {
namespace {

class GpuDevicePlan : public GpuEngine {
 protected:
  void SetUp() override {
    GpuEngine::SetUp();
    gpu.add_program(jit::plan_program());
  }
};
class CudaDevicePlan : public CudaEngine {
 protected:
  void SetUp() override {
    CudaEngine::SetUp();
    gpu.add_program(jit::plan_program());
  }
};

EngineOptions stream_options() {
  EngineOptions o = cuda_options();
  o.policy = Policy::stream;
  return o;
}

/// Makes `buffer` so large at least; what it holds is lost then.
void grow(GpuBuffer& buffer, int64_t bytes) {
  if (buffer.size() < bytes) buffer = GpuBuffer(0, 2 * bytes);
}

/// Arrays one behind another in one block of device memory, as large as they ever get.
class Packed {
 public:
  void clear() { here_.clear(); }
  template <class T>
  const T* put(const T* data, int64_t count) {
    const size_t at = (here_.size() + 63) / 64 * 64;
    here_.resize(at + size_t(count) * sizeof(T));
    if (count > 0) std::memcpy(here_.data() + at, data, size_t(count) * sizeof(T));
    return reinterpret_cast<const T*>(there_.data() + at);
  }
  IndexView put(const IndexView& v) {
    if (v.is_64) return IndexView(put(static_cast<const int64_t*>(v.data), v.size), v.size);
    return v.given() ? IndexView(put(static_cast<const int32_t*>(v.data), v.size), v.size) : v;
  }
  void upload() { there_.upload(here_.data(), int64_t(here_.size())); }

 private:
  std::vector<char> here_;
  GpuBuffer there_{0, 1 << 20};
};

// The kernel itself, over what the planner's own test plans on the host.
TEST_F(GpuDevicePlan, TheHostsBytesOfRandomSteps) {
  const uint64_t cases = gpu.is_fake() ? 300 : 10000;
  const runtime::Device& device = runtime::Device::get(0);
  GpuStream stream(0);
  std::vector<char> got;
  std::vector<uint32_t> counters;
  Packed arrays;
  GpuBuffer plan(0, 1 << 20), counting(0, 1 << 16), tables(0, 1 << 16), verdict(0, sizeof(plan::PlanVerdict));
  for (uint64_t seed = 0; seed < cases; ++seed) {
    DeviceStep s;
    make_device_step(seed, s);
    plan::Planner planner(s.spec, s.capacity, s.config);
    PlanBuffer want(planner.layout().plan_bytes);
    planner.plan(s.b.batch, want.data, want.bytes);
    Batch there = s.b.batch;
    arrays.clear();
    for (IndexView* view : {&there.qo_indptr, &there.kv_len, &there.list_indptr}) *view = arrays.put(*view);
    if (there.q_pos0 != nullptr) there.q_pos0 = arrays.put(there.q_pos0, there.num_requests);
    if (there.prefix != nullptr) there.prefix = arrays.put(there.prefix, there.num_requests);
    arrays.upload();
    plan::DeviceArgs a = device_args_of(s, planner.layout(), there);
    const int64_t table_bytes = plan::plan_table_bytes(a);
    grow(plan, want.bytes);
    grow(counting, planner.layout().counter_bytes);
    grow(tables, table_bytes);
    plan.fill(kUntouched);
    counting.fill(kUntouched);
    a.plan = plan.data(), a.counters = counting.as<uint32_t>(), a.verdict = verdict.as<plan::PlanVerdict>();
    a.tables = table_bytes > plan::kPlanTableBytes ? tables.data() : nullptr;
    runtime::launch_plan(device, a, static_cast<jit::CuStream>(stream.handle()));
    stream.synchronize();
    got.resize(size_t(want.bytes));
    counters.resize(size_t(planner.layout().max_units));
    plan.download(got.data(), want.bytes);
    counting.download(counters.data(), int64_t(counters.size() * sizeof(uint32_t)));
    ASSERT_EQ(device_plan_fault(got, counters, want), "") << "seed " << seed;
  }
}

TEST_F(GpuDevicePlan, RunsAndHasTheHostsBytes) {
  const Capacity capacity{8, 120, 9000, 0, 0};
  Engine engine(gpu_spec(), capacity, stream_options());
  Step largest = make_step({{120, 9000}});
  DeviceArrays arrays(capacity);
  GpuStep tensors(largest);
  GpuStream stream(0);
  const std::vector<std::vector<Request>> steps = {{{1, 300}, {1, 4096}, {1, 17}, {1, 2000}}, {{4, 700}, {0, 0}, {2, 7}, {1, 1}},
                                                   {{90, 400}, {1, 3000}, {7, 7}, {1, 90}},   {{0, 9}, {0, 0}},
                                                   {{120, 9000}}};
  for (size_t i = 0; i < steps.size(); ++i) {
    const std::vector<Request> requests = padded(steps[i], capacity.max_requests);
    Step s = make_step(requests, gpu_spec(), uint32_t(i + 5));
    arrays.take(s);
    arrays.batch.max_q_len = 120;
    tensors.refill(s);
    fit(tensors, capacity);
    tensors.tensors.pages = arrays.batch.pages;
    Plan plan = engine.plan_on_device(arrays.batch, stream.handle());
    EXPECT_EQ(plan.total_tokens(), capacity.max_query_tokens);
    EXPECT_TRUE(has(error_of([&] { plan.view(); }), "call check(plan, stream)"));
    engine.run(plan, tensors.tensors, stream.handle());
    stream.synchronize();
    expect_device_right(tensors, s, "step " + std::to_string(i));
    engine.check(plan, stream.handle());
    // A planner of the host with the engine's schedule; the engine's own may know better for a step of one class.
    plan::Planner planner(engine.spec(), capacity, engine.config());
    PlanBuffer want(planner.layout().plan_bytes);
    std::memset(want.data, 0, size_t(want.bytes));
    planner.plan(s.batch, want.data, want.bytes);
    const Span<const char> bytes = plan.bytes();
    ASSERT_EQ(bytes.size, want.bytes);
    EXPECT_EQ(std::memcmp(bytes.data, want.data, size_t(want.bytes)), 0) << "step " << i;
    EXPECT_TRUE(has(plan.explain(), "launch attend_mixed")) << plan.explain();
  }
}

// Up to 32 packed rows a request: what is declared decides, and a graph of it takes fewer rows, too.
TEST_F(GpuDevicePlan, StepsOfUpTo32Rows) {
  for (const char* family : families()) {
    const Capacity capacity{8, 100, 20000, 0, 0};
    EngineOptions options = stream_options();
    options.kernel = family;
    Engine engine(gpu_spec(), capacity, options);
    Step largest = make_step({{100, 20000}});
    DeviceArrays arrays(capacity);
    arrays.batch.max_q_len = 16;
    GpuStep tensors(largest);
    GpuStream stream(0);
    arrays.take(make_step({{1, 1}}));
    Plan plan = engine.plan_on_device(arrays.batch, stream.handle());
    fit(tensors, capacity);
    tensors.tensors.pages = arrays.batch.pages;
    stream.begin_capture();
    engine.replan_on_device(plan, arrays.batch, stream.handle());
    engine.run(plan, tensors.tensors, stream.handle());
    stream.end_capture();
    const std::vector<std::vector<Request>> steps = {
        {{16, 5000}, {9, 33}, {1, 7000}}, {{16, 16}, {10, 0}, {16, 4000}, {16, 1}, {16, 9}, {16, 700}, {9, 64}, {1, 1}}, {{1, 900}, {8, 31}}, {{0, 0}}, {{12, 19000}}};
    for (size_t i = 0; i < steps.size(); ++i) {
      Step s = make_step(padded(steps[i], capacity.max_requests), gpu_spec(), uint32_t(i + 5));
      arrays.take(s);
      tensors.refill(s);
      stream.launch();
      stream.synchronize();
      expect_device_right(tensors, s, family + (" step " + std::to_string(i)));
      engine.check(plan, stream.handle());
      EXPECT_TRUE(has(plan.explain(), "launch attend_memory_32")) << family << plan.explain();
      if (i == 2 || i == 3) continue;  // few rows, or none: the host's plan is of another kind
      const Plan host = engine.plan(s.batch);
      const Span<const char> got = plan.bytes(), want = host.bytes();
      ASSERT_EQ(got.size, want.size);
      EXPECT_EQ(std::memcmp(got.data, want.data, size_t(want.size)), 0) << family << " step " << i;
    }
  }
}

// Plan and layers in one graph: only what arrays hold changes.
TEST_F(GpuDevicePlan, PlanAndLayersInOneGraph) {
  const Capacity capacity{8, 16, 60000, 0, 0};
  Engine engine(gpu_spec(), capacity, stream_options());
  Step largest = make_step({{16, 60000}});
  DeviceArrays arrays(capacity);
  arrays.batch.max_q_len = 4;
  GpuStep first(largest), second(largest);
  GpuStream stream(0);
  arrays.take(make_step({{1, 1}}));
  Plan plan = engine.plan_on_device(arrays.batch, stream.handle());
  const uint64_t key = plan.graph_key();
  for (GpuStep* layer : {&first, &second}) {
    fit(*layer, capacity);
    layer->tensors.pages = arrays.batch.pages;
  }
  stream.begin_capture();
  engine.replan_on_device(plan, arrays.batch, stream.handle());
  engine.run(plan, first.tensors, stream.handle());
  engine.run(plan, second.tensors, stream.handle());
  stream.end_capture();
  EXPECT_EQ(plan.graph_key(), key);
  const std::vector<std::vector<Request>> steps = {{{1, 20000}, {1, 1}, {1, 1}, {1, 1}}, {{1, 300}, {1, 4096}, {1, 17}, {1, 2000}},
                                                   {{4, 700}, {0, 0}, {0, 7}, {0, 1}},   {{0, 0}, {0, 0}},
                                                   {{1, 7488}, {1, 7488}, {1, 7488}, {1, 7488}, {1, 7488}, {1, 7488}, {1, 7488}, {1, 7488}},
                                                   {{2, 9}, {1, 700}, {3, 5}, {1, 0}}};
  for (size_t i = 0; i < steps.size(); ++i) {
    Step s = make_step(steps[i], gpu_spec(), uint32_t(i + 5));
    arrays.take(s);
    first.refill(s);
    second.refill(s);
    stream.launch();
    stream.synchronize();
    expect_device_right(first, s, "first layer, step " + std::to_string(i));
    expect_device_right(second, s, "second layer, step " + std::to_string(i));
    engine.check(plan, stream.handle());
    EXPECT_EQ(plan.view().header->total_tokens, s.qo_indptr.back());
  }
}

TEST_F(GpuDevicePlan, BadLengthsMakeEveryRowNaN) {
  const Capacity capacity{4, 8, 4000, 0, 0};
  Engine engine(gpu_spec(), capacity, stream_options());
  Step s = make_step({{1, 900}, {2, 70}, {4, 400}, {1, 30}});
  DeviceArrays arrays(capacity);
  arrays.batch.max_q_len = 4;
  GpuStep g(s);
  fit(g, capacity);
  g.tensors.pages = arrays.batch.pages;
  arrays.take(s);
  GpuStream stream(0);
  Plan plan = engine.plan_on_device(arrays.batch, stream.handle());
  const std::vector<int32_t> list(s.list_indptr.begin(), s.list_indptr.end());
  const auto refused = [&](const std::vector<int32_t>& qo, const std::vector<int32_t>& kv, ErrorCode code) {
    arrays.put(qo, kv, list);
    s.o.bytes.assign(s.o.bytes.size(), 0);
    s.lse.bytes.assign(s.lse.bytes.size(), 0);
    engine.replan_on_device(plan, arrays.batch, stream.handle());
    engine.run(plan, g.tensors, stream.handle());
    stream.synchronize();
    g.download(s);
    for (int64_t i = 0; i < s.o.count(); ++i) EXPECT_TRUE(std::isnan(s.o.get(i))) << i;
    for (int64_t i = 0; i < s.lse.count(); ++i) EXPECT_TRUE(std::isnan(s.lse.get(i))) << i;
    return error_of([&] { engine.check(plan, stream.handle()); }, code);
  };
  EXPECT_TRUE(has(refused({0, 1, 3, 7, 8}, {900, -1, 400, 30}, ErrorCode::invalid_argument), "kv_len: request 1: got -1, wanted 0 to"));
  EXPECT_TRUE(has(refused({0, 2, 1, 7, 8}, {900, 70, 400, 30}, ErrorCode::invalid_argument), "qo_indptr: request 1: got 1, wanted no decrease after 2"));
  EXPECT_TRUE(has(refused({0, 1, 3, 8, 8}, {900, 70, 400, 30}, ErrorCode::over_capacity), "request 2: got 5 query tokens, wanted at most"));
  EXPECT_TRUE(has(refused({0, 2, 3, 7, 9}, {900, 70, 400, 30}, ErrorCode::over_capacity), "query tokens: got 9, wanted at most"));
  EXPECT_TRUE(has(refused({0, 1, 3, 7, 8}, {900, 700, 400, 30}, ErrorCode::invalid_argument), "request 1"));
  EXPECT_TRUE(has(error_of([&] { plan.explain(); }), "call check(plan, stream)"));
  arrays.take(s);  // and a sound one is right again
  g.poison();
  engine.replan_on_device(plan, arrays.batch, stream.handle());
  engine.run(plan, g.tensors, stream.handle());
  stream.synchronize();
  expect_device_right(g, s);
  engine.check(plan, stream.handle());
}

// What engines promise: a table whose rows are longer than the requests, lengths that are no shorter than the true ones, and where queries stand.
TEST_F(GpuDevicePlan, UpperBoundsOfLengthsInADenseTable) {
  const Capacity capacity{4, 8, 8000, 0, 0};
  Engine engine(gpu_spec(), capacity, stream_options());
  Step s = make_step({{1, 900}, {2, 70}, {4, 400}, {1, 30}});
  constexpr int32_t kStride = 90;  // pages of 16
  std::vector<int32_t> table(4 * kStride, INT32_MAX), upper, first;
  for (size_t r = 0; r < 4; ++r) {
    for (int64_t i = s.list_indptr[r]; i < s.list_indptr[r + 1]; ++i) table[r * kStride + size_t(i - s.list_indptr[r])] = s.pages[size_t(i)];
    upper.push_back(s.kv_len[r] + 500);
    first.push_back(s.kv_len[r] - s.requests[r].q_len);
  }
  const GpuBuffer qo = put(s.qo_indptr), lengths = put(upper), positions = put(first), pages = put(table);
  DeviceBatch batch;
  batch.num_requests = 4, batch.num_tokens = 8, batch.max_q_len = 4;
  batch.qo_indptr = IndexView(qo.as<int32_t>(), 5);
  batch.kv_len = IndexView(lengths.as<int32_t>(), 4);
  batch.q_pos0 = positions.as<int32_t>();
  batch.pages = IndexView(pages.as<int32_t>(), int64_t(table.size()));
  batch.table_stride = kStride;
  GpuStep g(s);
  g.tensors.pages = {};
  GpuStream stream(0);
  Plan plan = engine.plan_on_device(batch, stream.handle());
  engine.run(plan, g.tensors, stream.handle());
  stream.synchronize();
  expect_device_right(g, s);
  engine.check(plan, stream.handle());
  for (const WorkItem& item : plan.view().items) EXPECT_LE(item.kv_end, s.kv_len[size_t(plan.view().groups[item.group].request)]);
}

TEST_F(GpuDevicePlan, FromC) {
  const Capacity capacity{4, 8, 4000, 0, 0};
  Step s = make_step({{1, 900}, {2, 70}, {4, 400}, {1, 30}});
  DeviceArrays arrays(capacity);
  arrays.take(s);
  kvloom_spec spec;
  kvloom_spec_init(&spec, sizeof spec);
  spec.num_qo_heads = 4, spec.num_kv_heads = 2, spec.head_dim_qk = spec.head_dim_vo = 64;
  spec.q_dtype = spec.kv_dtype = spec.o_dtype = KVLOOM_BF16;
  spec.causal = 1;
  kvloom_capacity cap;
  kvloom_capacity_init(&cap, sizeof cap);
  cap.max_requests = 4, cap.max_query_tokens = 8, cap.max_kv_tokens = 4000;
  kvloom_options options;
  kvloom_options_init(&options, sizeof options);
  options.backend = KVLOOM_CUDA, options.device = 0, options.policy = KVLOOM_STREAM;
  kvloom_engine* engine = nullptr;
  ASSERT_EQ(kvloom_engine_create(&spec, &cap, &options, nullptr, 0, &engine), KVLOOM_OK) << kvloom_last_error();
  kvloom_device_batch batch;
  kvloom_device_batch_init(&batch, sizeof batch);
  const auto indices = [](const IndexView& v) { return kvloom_indices{v.data, v.size, 32}; };
  batch.num_requests = 4, batch.num_tokens = 8, batch.max_q_len = 4;
  batch.qo_indptr = indices(arrays.batch.qo_indptr), batch.kv_len = indices(arrays.batch.kv_len);
  batch.list_indptr = indices(arrays.batch.list_indptr), batch.pages = indices(arrays.batch.pages);
  kvloom_plan* plan = nullptr;
  ASSERT_EQ(kvloom_plan_device_create(engine, &batch, nullptr, &plan), KVLOOM_OK) << kvloom_last_error();
  uint64_t key = 0;
  EXPECT_EQ(kvloom_plan_graph_key(plan, &key), KVLOOM_OK);
  EXPECT_NE(key, 0u);
  const void* data = nullptr;
  int64_t size = 0;
  EXPECT_EQ(kvloom_plan_bytes(plan, &data, &size), KVLOOM_INVALID_ARGUMENT);
  EXPECT_EQ(kvloom_plan_check(engine, plan, nullptr), KVLOOM_OK) << kvloom_last_error();
  EXPECT_EQ(kvloom_plan_bytes(plan, &data, &size), KVLOOM_OK);
  EXPECT_GT(size, 0);
  EXPECT_EQ(kvloom_plan_device_update(engine, plan, &batch, nullptr), KVLOOM_OK) << kvloom_last_error();
  batch.num_requests = 5;
  EXPECT_EQ(kvloom_plan_device_update(engine, plan, &batch, nullptr), KVLOOM_INVALID_ARGUMENT);
  EXPECT_TRUE(has(kvloom_last_error(), "qo_indptr: got 5 entries, wanted 6")) << kvloom_last_error();
  EXPECT_EQ(kvloom_plan_device_create(engine, nullptr, nullptr, &plan), KVLOOM_INVALID_ARGUMENT);
  kvloom_plan_destroy(plan);
  kvloom_engine_destroy(engine);
}

TEST_F(GpuDevicePlan, WhatIsRefusedAtOnce) {
  const Capacity capacity{4, 8, 4000, 0, 0};
  Step s = make_step({{1, 900}, {2, 70}, {4, 400}, {1, 30}});
  DeviceArrays arrays(capacity);
  arrays.take(s);
  arrays.batch.max_q_len = 4;
  Engine engine(gpu_spec(), capacity, stream_options());
  const auto refusal = [&](auto change, ErrorCode code = ErrorCode::invalid_argument) {
    DeviceBatch b = arrays.batch;
    change(b);
    return error_of([&] { engine.plan_on_device(b); }, code);
  };
  EXPECT_TRUE(has(refusal([](DeviceBatch& b) { b.num_tokens = 9; }, ErrorCode::over_capacity),
                  "num_tokens: got 9, wanted at most Capacity.max_query_tokens = 8"));
  EXPECT_TRUE(has(refusal([](DeviceBatch& b) { b.max_q_len = -1; }), "max_q_len: got -1"));
  EXPECT_TRUE(has(refusal([](DeviceBatch& b) { b.kv_len = {}; }), "kv_len: got 0 entries (a null pointer), wanted 4"));
  EXPECT_TRUE(has(refusal([](DeviceBatch& b) { b.list_indptr.size = 3; }), "list_indptr: got 3 entries, wanted 5"));
  EXPECT_TRUE(has(refusal([](DeviceBatch& b) { b.table_stride = 7; }), "beside table_stride = 7, wanted either"));
  EXPECT_TRUE(has(refusal([](DeviceBatch& b) { b.kv_tokens = 7; }), "kv_tokens: got 7"));
  EXPECT_TRUE(has(refusal([&](DeviceBatch& b) { b.qo_indptr = IndexView(s.qo_indptr.data(), 5); }), "qo_indptr: got host memory"));
  Engine automatic(gpu_spec(), capacity, cuda_options());
  EXPECT_TRUE(has(error_of([&] { automatic.plan_on_device(arrays.batch); }, ErrorCode::unsupported), "options.policy: got auto, wanted stream"));
  Engine on_cpu(gpu_spec(), capacity);
  EXPECT_TRUE(has(error_of([&] { on_cpu.plan_on_device(arrays.batch); }, ErrorCode::unsupported), "options.backend = cuda"));
  // K and V that are shorter than was said, and a page table of run's own that is.
  Plan plan = engine.plan_on_device(arrays.batch);
  GpuStep g(s);
  EXPECT_TRUE(has(error_of([&] { engine.run(plan, g.tensors); }), "pages: got"));
  g.tensors.pages = {};
  EXPECT_NO_THROW(engine.run(plan, g.tensors)) << "the ids that the plan was made from";
  expect_device_right(g, s);
  g.tensors.q.shape[0] = 7;
  const std::string rows = error_of([&] { engine.run(plan, g.tensors); });
  EXPECT_TRUE(has(rows, "run: q: shape") && has(rows, "wanted [8, 4, 64]") && has(rows, "as planned")) << rows;
  // Two plans in flight, and a handle that goes from the host to the device and back.
  Plan mine = engine.plan(s.batch);
  g.tensors.q.shape[0] = 8;
  engine.replan_on_device(mine, arrays.batch);
  engine.run(mine, g.tensors);
  expect_device_right(g, s);
  engine.replan(mine, s.batch);
  g.poison();
  g.tensors.pages = arrays.batch.pages;
  engine.run(mine, g.tensors);
  expect_device_right(g, s);
  EXPECT_NO_THROW(engine.check(mine));
}

TEST_F(CudaDevicePlan, UnderCaptureNothingIsLoadedOrAllocated) {
  const Capacity capacity{4, 8, 4000, 0, 0};
  Step s = make_step({{1, 900}, {2, 70}, {4, 400}, {1, 30}});
  DeviceArrays arrays(capacity);
  arrays.take(s);
  Engine engine(gpu_spec(), capacity, stream_options());
  Plan of_the_host = engine.plan(s.batch);
  engine.plan_on_device(arrays.batch);  // loads the kernel; another handle
  GpuStream stream(0);
  stream.begin_capture();
  EXPECT_TRUE(has(error_of([&] { engine.replan_on_device(of_the_host, arrays.batch, stream.handle()); }),
                  "wanted it made by plan_on_device before the capture"));
  Plan plan = engine.plan_on_device(arrays.batch);
  EXPECT_TRUE(has(error_of([&] { engine.check(plan, stream.handle()); }), "check waits for the device"));
  stream.end_capture();
}

}  // namespace
}  // namespace kvloom::test
