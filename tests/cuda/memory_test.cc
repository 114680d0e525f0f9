// What memory an engine takes on a GPU, and which it refuses.
#include "tests/cuda/engine_fixture.h"

namespace kvloom::test {
namespace {

TEST_F(GpuEngine, WrongMemoryIsNamed) {
  Step s = make_step({{1, 90}});
  Engine engine(s.spec, large(), cuda_options());
  const Plan plan = engine.plan(s.batch);
  GpuStep g(s);
  const auto refusal = [&](auto change) {
    RunTensors t = g.tensors;
    change(t);
    return error_of([&] { engine.run(plan, t); }, ErrorCode::invalid_argument);
  };
  EXPECT_TRUE(has(refusal([&](RunTensors& t) { t.q.data = s.q.t.data, t.q.device_type = 0; }), "run: q: got host memory"));
  EXPECT_TRUE(has(refusal([&](RunTensors& t) { t.o.data = s.o.t.data; }), "run: o: got host memory"));
  EXPECT_TRUE(has(refusal([&](RunTensors& t) { t.k.device_type = 1; }), "run: k: device_type"));
  EXPECT_TRUE(has(refusal([&](RunTensors& t) { t.pages = s.batch.pages; }), "run: pages: got host memory"));
  EXPECT_TRUE(has(refusal([&](RunTensors& t) { t.pages = {}; }), "run: pages: got none"));
  EXPECT_TRUE(has(refusal([&](RunTensors& t) { t.v.data = static_cast<char*>(t.v.data) + 2; }), "run: v: address"));
  if (gpus().size() > 1) {
    GpuStep other(s, 1);
    EXPECT_TRUE(has(refusal([&](RunTensors& t) { t.v.data = other.tensors.v.data; }), "run: v: got memory of GPU 1"));
  }
  EXPECT_TRUE(has(refusal([&](RunTensors& t) { t.q.stride[1] += 1, t.q.shape[0] = 1; }), "run: q: stride[1]"));
  // And the other way round.
  Engine host(s.spec, large(), {});
  const Plan host_plan = host.plan(s.batch);
  EXPECT_TRUE(has(error_of([&] { host.run(host_plan, g.tensors); }, ErrorCode::invalid_argument), "run: q: device_type: got 2"));
}

TEST_F(CudaEngine, AnAddressIsShownToTheDriverOnce) {
  Step s = make_step({{1, 300}, {5, 64}});
  Engine engine(s.spec, s.capacity(), cuda_options());
  const Plan plan = engine.plan(s.batch);
  GpuStep g(s);
  engine.run(plan, g.tensors);
  gpu.reset();
  for (int i = 0; i < 5; ++i) engine.run(plan, g.tensors);
  EXPECT_EQ(gpu.count("cuPointerGetAttributes"), 0);
  RunTensors t = g.tensors;
  t.q.data = s.q.t.data, t.q.device_type = 0;
  for (int i = 0; i < 2; ++i) error_of([&] { engine.run(plan, t); }, ErrorCode::invalid_argument);
}

TEST_F(CudaEngine, OutOfDeviceMemoryHasBothNumbers) {
  gpu.set_free_bytes(1000);
  const std::string text = error_of([&] { Engine(gpu_spec(), large(), cuda_options()); }, ErrorCode::out_of_memory);
  EXPECT_TRUE(has(text, "1000 bytes free") && has(text, "wanted ")) << text;
}

TEST_F(GpuEngine, B79_B80_CallersWorkspaceAndItsExactSize) {
  Step s = make_step({{1, 900}, {1, 800}});
  const int64_t bytes = Engine::workspace_size(s.spec, large(), cuda_options());
  GpuBuffer block(0, bytes + 256);
  block.fill(0xff);  // B80
  error_of([&] { Engine(s.spec, large(), cuda_options(), {block.data(), bytes - 1}); }, ErrorCode::mismatch);
  error_of([&] { Engine(s.spec, large(), cuda_options(), {block.data() + 64, bytes}); }, ErrorCode::invalid_argument);
  std::vector<char> host(size_t(bytes) + 256);
  void* at = host.data() + 256 - reinterpret_cast<uintptr_t>(host.data()) % 256;
  EXPECT_TRUE(has(error_of([&] { Engine(s.spec, large(), cuda_options(), {at, bytes}); }, ErrorCode::invalid_argument), "host memory"));
  Engine engine(s.spec, large(), cuda_options(), {block.data(), bytes});
  // Steps of few rows, of many and of both, by both families, one after another: each finds what another, or nobody, left.
  for (const char* kernel : {"sm80", "sm90"}) {
    if (kernel == std::string("sm90") && !gpu.is_fake() && gpus()[0].arch != "sm_90a") continue;
    EngineOptions options = cuda_options();
    options.kernel = kernel;
    options.policy = Policy::stream;
    options.num_ctas = 7;
    const int64_t wanted = Engine::workspace_size(s.spec, large(), options);
    GpuBuffer shared(0, wanted);
    shared.fill(0xff);
    Engine next(s.spec, large(), options, {shared.data(), wanted});
    const std::vector<Request> steps[] = {{{1, 900}, {1, 800}}, {{100, 1500}, {60, 900}}, {{1, 1700}, {70, 900}}, {{1, 900}, {1, 800}}, {{1, 1700}, {70, 900}}, {{100, 1500}, {60, 900}}};
    for (size_t i = 0; i < std::size(steps); ++i) {
      if (i == 3) shared.fill(0xff);
      Step step = make_step(steps[i], s.spec, uint32_t(i + 1));
      GpuStep g(step);
      g.poison();
      const Plan plan = next.plan(step.batch);
      EXPECT_GT(plan.view().units.size, 0) << i << ": nothing is cut, nothing is kept in between";
      next.run(plan, g.tensors);
      expect_device_right(g, step, std::string(kernel) + ", step " + std::to_string(i));
    }
  }
  GpuStep g(s);
  g.poison();
  const Plan plan = engine.plan(s.batch);
  engine.run(plan, g.tensors);
  expect_device_right(g, s);
}

TEST_F(GpuEngine, OutOfDeviceMemoryNamesTheBytes) {
  const GpuMemory memory = gpu_memory(0);
  const std::string buffer = error_of([&] { GpuBuffer(0, 2 * memory.total_bytes); }, ErrorCode::out_of_memory);
  EXPECT_TRUE(has(buffer, "wanted " + std::to_string(2 * memory.total_bytes)) && has(buffer, "bytes free")) << buffer;
  // An engine where nearly everything is taken: nothing is left behind, and a smaller one can be made.
  constexpr int64_t kLeft = 64 << 20;
  std::vector<GpuBuffer> taken;
  if (gpu.is_fake()) gpu.set_free_bytes(kLeft);
  while (gpu_memory(0).free_bytes > kLeft) taken.emplace_back(0, gpu_memory(0).free_bytes - kLeft);  // again, where another process has freed some
  const Capacity huge = {64, 100000, 0, 400000, 0};
  const int64_t wanted = Engine::workspace_size(gpu_spec(), huge, cuda_options());
  const std::string text = error_of([&] { Engine(gpu_spec(), huge, cuda_options()); }, ErrorCode::out_of_memory);
  EXPECT_TRUE(has(text, "workspace: got ") && has(text, "wanted " + std::to_string(wanted))) << text;
  EXPECT_NO_THROW(Engine(gpu_spec(), large(), cuda_options()));
}

// B74 (B35 too): lengths that are still being made on the device can't be planned from; they are refused by name, not read.
TEST_F(GpuEngine, B74_PlanReadsNoDeviceMemory) {
  Step s = make_step({{1, 90}, {1, 33}});
  Engine engine(s.spec, large(), cuda_options());
  GpuBuffer there(0, 4096);
  const auto refusal = [&](auto change) {
    Batch batch = s.batch;
    change(batch);
    return error_of([&] { engine.plan(batch); }, ErrorCode::invalid_argument);
  };
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(has(refusal([&](Batch& b) { b.qo_indptr.data = there.data(); }), "plan: qo_indptr: got memory of GPU 0"));
    EXPECT_TRUE(has(refusal([&](Batch& b) { b.kv_len.data = there.data(); }), "plan: kv_len: got memory of GPU 0"));
    EXPECT_TRUE(has(refusal([&](Batch& b) { b.list_indptr.data = there.data(); }), "plan: list_indptr: got memory of GPU 0"));
    EXPECT_TRUE(has(refusal([&](Batch& b) { b.pages.data = there.data(); }), "plan: pages: got memory of GPU 0"));
  }
  EXPECT_EQ(engine.plan(s.batch).total_tokens(), 2);
}

// Ids that nothing on the host reads may lie anywhere: neither checked (check_pages) nor searched for shared prefixes (max_level_rows).
TEST_F(GpuEngine, PageIdsThatAreNotReadMayLieOnTheDevice) {
  Step s = make_step({{1, 90}, {1, 33}});
  EngineOptions unread = cuda_options();
  unread.check_pages = false;
  GpuStep g(s);
  g.poison();
  Batch there = s.batch;
  there.pages = g.tensors.pages;
  Engine engine(s.spec, large(), unread);
  const Plan plan = engine.plan(there);
  engine.run(plan, g.tensors);
  expect_device_right(g, s);
  there.pages.size = 6;  // their number still counts: 90 tokens take six pages
  EXPECT_TRUE(has(error_of([&] { engine.plan(there); }, ErrorCode::invalid_argument), "plan: pages: request 1: got 6 entries"));

  there.pages = g.tensors.pages;
  Capacity levels = large();
  levels.max_level_rows = 8;
  Engine searching(s.spec, levels, unread);
  EXPECT_TRUE(has(error_of([&] { searching.plan(there); }, ErrorCode::invalid_argument), "plan: pages: got memory of GPU 0"));
  unread.levels = LevelMode::off;
  EXPECT_EQ(Engine(s.spec, levels, unread).plan(there).total_tokens(), 2);
}

// B58: a kernel that wants more shared memory than the chip gives a CTA; B78: one of which no CTA fits. Neither is launched.
TEST_F(CudaEngine, B58_B78_KernelsThatDoNotFitAreNamed) {
  AttentionSpec spec = gpu_spec();
  spec.head_dim_qk = spec.head_dim_vo = 208;
  gpu.add_kernel(spec, false, 300 * 1024);
  const std::string large_one = error_of([&] { Engine(spec, large(), cuda_options()); }, ErrorCode::internal);
  EXPECT_TRUE(has(large_one, "307200 bytes of shared memory") && has(large_one, "wanted at most")) << large_one;
  spec.head_dim_qk = spec.head_dim_vo = 224;
  gpu.add_kernel(spec, false, 227 * 1024);  // the fake driver keeps a KiB of an SM for each CTA, and this one has no other
  gpu.set_occupancy(0);
  const std::string none = error_of([&] { Engine(spec, large(), cuda_options()); }, ErrorCode::internal);
  EXPECT_TRUE(has(none, "no CTA that fits an SM")) << none;
  gpu.set_occupancy(-1);
  EXPECT_NO_THROW(Engine(spec, large(), cuda_options()));
}

TEST_F(GpuEngine, AHeadDimWithoutAKernelNamesTheNearest) {
  AttentionSpec spec = gpu_spec();
  spec.head_dim_qk = spec.head_dim_vo = 100;
  const std::string text = error_of([&] { Engine(spec, large(), cuda_options()); }, ErrorCode::unsupported);
  EXPECT_TRUE(has(text, "head dim 100: the nearest with a kernel is 112")) << text;
}

}  // namespace
}  // namespace kvloom::test
