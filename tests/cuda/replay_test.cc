// `kvloom replay --backend cuda` on the fake driver: the same steps as on the CPU, the pages made and filled on the device, rows checked,
// planning ahead, and what goes wrong.
#include "cli/replay/replay.h"
#include "cli/replay/cpu_machine.h"
#include "cli/replay/gpu_machine.h"
#include "kvloom/support/format.h"
#include "tests/cuda/engine_fixture.h"

#include <cstring>

namespace kvloom::replay {
namespace {

using test::FakeGpu;

const std::atomic<bool> kNever{false};

/// A replay's kernels in the fake driver's cache.
class CudaReplay : public testing::Test {
 protected:
  void SetUp() override {
    gpu.reset();
    gpu.add_program(jit::ops_program());
    gpu.add_program({"replay.kernels", kGpuKernels});
  }
  void TearDown() override { gpu.set_spec(nullptr); }

  ReplayOptions options(const char* model = "smollm2-135m") {
    ReplayOptions o;
    o.model = model;
    o.synthetic.median_prompt = 60;
    o.synthetic.median_output = 8;
    o.fixed_step_us = 20000;
    o.kv_pool_tokens = 6000;
    o.batch.token_budget = 256;
    o.batch.max_batch = 8;
    o.measure_ceilings = false;
    o.requests = 12;
    return o;
  }
  /// The same on the fake GPU.
  ReplayOptions on_gpu(ReplayOptions o) {
    o.engine.backend = Backend::cuda;
    spec_ = layer_spec(find_model(o.model, o.overrides), 0, o.types, o.batch.page_size);
    gpu.add_kernel(spec_);
    gpu.set_spec(&spec_);
    return o;
  }
  FakeGpu& gpu = FakeGpu::get();
  AttentionSpec spec_;
};

void expect_same_steps(const Report& a, const Report& b) {
  EXPECT_EQ(a.steps, b.steps);
  EXPECT_EQ(a.requests, b.requests);
  EXPECT_EQ(a.counts.tokens, b.counts.tokens);
  EXPECT_EQ(a.counts.finished, b.counts.finished);
  EXPECT_EQ(a.counts.hit_tokens, b.counts.hit_tokens);
  EXPECT_EQ(a.counts.preempted, b.counts.preempted);
  EXPECT_EQ(a.counts.evicted_pages, b.counts.evicted_pages);
  EXPECT_EQ(a.counts.copied_pages, b.counts.copied_pages);
  EXPECT_EQ(a.rows_checked, b.rows_checked);
  EXPECT_EQ(a.simulated_seconds, b.simulated_seconds);
}

TEST_F(CudaReplay, IsTheReplayOfTheCpu) {
  ReplayOptions o = options();
  o.batch.samples = 2;  // pages are copied
  const Report cpu = run_replay(o, kNever, nullptr);
  const Report r = run_replay(on_gpu(o), kNever, nullptr);
  expect_same_steps(cpu, r);
  EXPECT_EQ(r.fault(), "");
  EXPECT_EQ(r.nonfinite_outputs, 0);
  EXPECT_GT(r.rows_checked, 100);
  EXPECT_GT(r.counts.copied_pages, 0);
  EXPECT_GT(r.counts.hit_tokens, 0);
  EXPECT_GT(r.plans_ahead, r.steps / 2) << "the next step is planned while one runs";
  EXPECT_GT(r.peak_device_bytes, r.pool_tokens * r.token_bytes);
  EXPECT_EQ(r.gpu.name, "Fake 0");
  EXPECT_EQ(r.run_us.median(), 1000.0) << "by events: the fake driver's take a millisecond";
  const nlohmann::ordered_json j = to_json(r);
  EXPECT_EQ(j["backend"], "cuda");
  EXPECT_NE(to_text(r).find("on one Fake 0"), std::string::npos);
}

TEST_F(CudaReplay, LayersLayoutsAndNarrowCaches) {
  ReplayOptions o = options();
  o.layers = 3;
  o.layout = KvLayout::nhd;
  o.types.kv = DType::e4m3;
  o.kv_pool_tokens = 4000;
  const Report cpu = run_replay(o, kNever, nullptr);
  const Report r = run_replay(on_gpu(o), kNever, nullptr);
  expect_same_steps(cpu, r);
  EXPECT_EQ(r.pools, 3);
  EXPECT_EQ(r.fault(), "");
}

TEST_F(CudaReplay, KeysAndValuesOfOneRow) {
  ReplayOptions o = options("deepseek-v3");  // V lies in K
  o.requests = 3;
  o.overrides.heads = 16;
  o.batch.page_size = 64;
  const Report cpu = run_replay(o, kNever, nullptr);
  const Report r = run_replay(on_gpu(o), kNever, nullptr);
  expect_same_steps(cpu, r);
  EXPECT_EQ(r.fault(), "");
}

// By the measured clock the steps may be others than the CPU's, but they are all run and right.
TEST_F(CudaReplay, MeasuredClock) {
  ReplayOptions o = options();
  o.fixed_step_us = 0;
  const Report r = run_replay(on_gpu(o), kNever, nullptr);
  EXPECT_EQ(r.counts.finished, 12);
  EXPECT_EQ(r.fault(), "");
  EXPECT_GT(r.hidden_plan_us, 0.0);
  EXPECT_LE(r.hidden_plan_us, r.plan_us_total);
}

// Taken of the step that ran, while the next one is planned already; the replay is the same.
TEST_F(CudaReplay, TimelinesOfTheLargestSteps) {
  ReplayOptions o = options();
  o.layers = 2;
  const Report plain = run_replay(on_gpu(o), kNever, nullptr);
  EXPECT_TRUE(plain.timelines().empty());
  o.timeline = true;
  const Report cpu = run_replay(o, kNever, nullptr);
  const Report r = run_replay(on_gpu(o), kNever, nullptr);
  expect_same_steps(plain, r);
  EXPECT_EQ(r.fault(), "");
  const nlohmann::ordered_json j = to_json(r);
  for (int kind = 0; kind < 3; ++kind) {
    if (r.kinds[kind].steps == 0) continue;
    ASSERT_TRUE(r.timed[kind]);
    const TimedStep& t = *r.timed[kind];
    EXPECT_FALSE(t.timeline.on_cpu);
    EXPECT_NE(t.timeline.name.find(kvloom::format("step {}, {}: ", t.step, kStepKindNames[kind])), std::string::npos) << t.timeline.name;
    uint64_t cost = 0;
    for (const cli::PlannedItem& p : t.timeline.planned) cost += p.cost;
    EXPECT_EQ(cost, t.cost) << "the plan of that step, not of the one that is planned meanwhile";
    EXPECT_EQ(j["timeline"][kStepKindNames[kind]]["step"], t.step);
    ASSERT_TRUE(cpu.timed[kind]);
    EXPECT_TRUE(cpu.timed[kind]->timeline.on_cpu);
  }
  EXPECT_EQ(r.timelines().size(), j["timeline"].size());
}

TEST_F(CudaReplay, TheFamilyThatIsAskedFor) {
  for (const char* family : {"sm80", "sm90"}) {
    ReplayOptions o = on_gpu(options());
    o.requests = 2;
    o.engine.kernel = family;
    const Report r = run_replay(o, kNever, nullptr);
    EXPECT_EQ(r.kernel_keys.rfind(std::string("attend.") + family + ".", 0), 0u) << r.kernel_keys;
    EXPECT_EQ(r.fault(), "");
  }
}

// What stands in the pages is what the CPU's pages hold, poison included.
TEST_F(CudaReplay, PagesHoldTheSameBytes) {
  const Model model = find_model("smollm2-135m");
  std::vector<TraceRequest> trace(1);
  trace[0].prompt_tokens = 200;
  MachineOptions m;
  m.engine.threads = 1;
  m.pages = 16;
  m.layers = m.pools = 2;
  m.longest = 256;
  MachineOptions g = m;
  g.engine.backend = Backend::cuda;
  g.engine.device = 0;
  spec_ = layer_spec(model, 0, m.types, m.page_size);
  gpu.add_kernel(spec_);
  gpu.set_spec(&spec_);
  PageAllocator pages(16);
  RadixTree cache(pages);
  Batcher batcher(BatchOptions{}, trace, pages, cache);
  batcher.arrive(0);
  const Step& step = batcher.schedule();
  CpuMachine on_cpu(model, m);
  GpuMachine on_device(model, g);
  on_cpu.prepare(batcher, step);
  on_device.prepare(batcher, step);
  on_device.plan(0);
  on_device.start(0, {});
  on_device.finish();
  for (int32_t layer = 0; layer < 2; ++layer) {
    for (const auto& [host, device] :
         {std::pair{on_cpu.store().k(layer), on_device.k(layer)}, {on_cpu.store().v(layer), on_device.v(layer)}}) {
      const size_t bytes = size_t(13 * host.stride[0] * 2);  // the pages of 200 tokens
      std::vector<char> copy(bytes);
      GpuStream stream(0);
      GpuBuffer there(0, int64_t(bytes));
      stream.copy(there.data(), device.data, int64_t(bytes));
      stream.synchronize();
      there.download(copy.data(), int64_t(bytes));
      EXPECT_EQ(std::memcmp(copy.data(), host.data, bytes), 0) << layer;
    }
  }
}

TEST_F(CudaReplay, StopsWithAPartialReport) {
  std::atomic<bool> stop{false};
  const Report r = run_replay(on_gpu(options()), stop, [&](const ReplayProgress& p) { stop = p.steps >= 5; });
  EXPECT_EQ(r.stopped, "interrupted");
  EXPECT_EQ(r.steps, 5);
  EXPECT_EQ(r.fault(), "");
}

TEST_F(CudaReplay, APoolThatIsTooLargeNamesBothNumbers) {
  ReplayOptions o = on_gpu(options());
  o.kv_pool_tokens = int64_t(1) << 25;
  try {
    run_replay(o, kNever, nullptr);
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(int(e.code()), int(ErrorCode::out_of_memory));
    EXPECT_NE(std::string(e.what()).find("KV pool: got "), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("--kv-pool-tokens"), std::string::npos) << e.what();
  }
}

// The check must be able to fail.
TEST_F(CudaReplay, AWrongKernelIsFound) {
  const ReplayOptions o = on_gpu(options());
  AttentionSpec wrong = spec_;
  wrong.variant.range.causal = false;
  gpu.set_spec(&wrong);
  EXPECT_NE(run_replay(o, kNever, nullptr).fault(), "");
}

}  // namespace
}  // namespace kvloom::replay
