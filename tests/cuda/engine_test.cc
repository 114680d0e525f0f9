// The host side of the GPU backend on a driver that is as late as it may be: copies, order between streams, graphs, refusals.
#include "tests/cuda/engine_fixture.h"

#include <map>
#include <thread>

namespace kvloom::test {
namespace {

TEST_F(GpuEngine, EveryPolicyIsRight) {
  AttentionSpec spec = gpu_spec();
  gpu.add_kernel(spec, true);
  for (const Policy policy : {Policy::none, Policy::heap, Policy::stream, Policy::fill, Policy::fixed_split, Policy::automatic}) {
    for (const int32_t ctas : {0, 1, 7}) {
      Step s = make_step({{1, 300}, {7, 64}, {33, 33}, {1, 1}, {2, 129}, {0, 40}, {3, 0}});
      EngineOptions options = cuda_options();
      options.policy = policy;
      options.num_ctas = ctas;
      Engine engine(s.spec, s.capacity(), options);
      EXPECT_EQ(engine.backend(), Backend::cuda);
      GpuStep g(s);
      g.poison();
      const Plan plan = engine.plan(s.batch);
      engine.run(plan, g.tensors);
      expect_device_right(g, s, std::to_string(int(policy)));
    }
  }
}

TEST_F(CudaEngine, RunOnlyPutsWorkIntoTheStream) {
  Step s = make_step({{1, 300}, {5, 64}});
  Engine engine(s.spec, s.capacity(), cuda_options());
  EXPECT_EQ(engine.kernel_key(), "attend.sm90.bf16.d64.paged.causal");
  const Plan plan = engine.plan(s.batch);
  GpuStep g(s);
  g.poison();
  gpu.reset();
  for (int layer = 0; layer < 3; ++layer) engine.run(plan, g.tensors);
  EXPECT_EQ(gpu.count("cuLaunchKernelEx"), 3);
  EXPECT_EQ(gpu.count("cuMemcpyHtoDAsync"), 1) << "one copy a plan";
  EXPECT_EQ(gpu.count("cuStreamSynchronize") + gpu.count("cuEventSynchronize") + gpu.count("cuCtxSynchronize"), 0);
  EXPECT_EQ(gpu.count("cuMemAlloc") + gpu.count("cuMemHostAlloc") + gpu.count("cuModuleLoadData"), 0);
  EXPECT_EQ(gpu.count("cuEventRecord"), 1) << "of the copy; one between launches would keep them from overlapping";
  EXPECT_TRUE(gpu.last_early());
  expect_device_right(g, s);
}

TEST_F(CudaEngine, AKernelWaitsForItsPlaceWhereThatIsAskedFor) {
  Step s = make_step({{1, 300}, {5, 64}});
  EngineOptions options = cuda_options();
  options.early_launch = false;
  Engine engine(s.spec, s.capacity(), options);
  GpuStep g(s);
  g.poison();
  engine.run(engine.plan(s.batch), g.tensors);
  EXPECT_FALSE(gpu.last_early());
  expect_device_right(g, s);
}

TEST_F(CudaEngine, OnlyWhatAStepUsesIsCopied) {
  Engine engine(gpu_spec(), {64, 4000, 100000, 4000, 0}, cuda_options());
  Step s = make_step({{1, 300}, {5, 64}});
  GpuStep g(s);
  const Plan plan = engine.plan(s.batch);
  gpu.reset();
  engine.run(plan, g.tensors);
  EXPECT_EQ(gpu.count("cuMemcpyHtoDAsync"), 1);
  EXPECT_LT(gpu.count("cuMemcpyHtoDAsync bytes"), plan.bytes().size / 4);
  expect_device_right(g, s);
}

// Few rows alone have a kernel of their own; family sm80's, two CTAs an SM, not in an engine that is too small for its pieces: the capacity decides.
// Up to 32 rows have another in both, in any engine.
TEST_F(CudaEngine, EntryFollowsTheStep) {
  const std::pair<std::vector<Request>, const char*> steps[] = {{{{1, 50}, {4, 60}}, "attend_memory"},
                                                                {{{30, 50}}, "attend_compute"},
                                                                {{{1, 50}, {30, 50}}, "attend_mixed"},
                                                                {{{1, 70}}, "attend_memory"},
                                                                {{{16, 90}, {9, 60}, {1, 40}}, "attend_memory_32"}};
  for (const auto& [kernel, is_large] : {std::pair("sm80", false), {"sm80", true}, {"sm90", false}, {"sm90", true}}) {
    EngineOptions options = cuda_options();
    options.kernel = kernel;
    const bool has_small = !is_large && kernel == std::string("sm80");
    Engine engine(gpu_spec(), is_large ? Capacity{8, 64, 1000000, 1000, 0} : large(), options);
    Plan plan = engine.plan(make_step({{1, 1}}).batch);
    std::map<std::string, std::string> bytes;  // of a step: the same whatever came before
    for (const auto& [requests, entry] : {steps[0], steps[4], steps[1], steps[2], steps[3], steps[1], steps[4], steps[0], steps[3], steps[2]}) {
      Step s = make_step(requests);
      GpuStep g(s);
      g.poison();
      engine.replan(plan, s.batch);
      engine.run(plan, g.tensors);
      const std::string now(plan.bytes().data, size_t(plan.bytes().size));
      const auto [before, first] = bytes.try_emplace(entry + std::to_string(requests.front().kv_len), now);
      EXPECT_TRUE(first || before->second == now) << entry;
      const std::string want = has_small && std::string(entry) == "attend_memory" ? "attend_small" : entry;
      EXPECT_EQ(gpu.last_entry(), want) << kernel;
      expect_device_right(g, s);
    }
  }
}

// Which kernel a step is for is asked before the batch has been judged: no difference of such numbers may be trusted.
TEST_F(CudaEngine, RowsOfAnIndptrThatIsNone) {
  Engine engine(gpu_spec(), large(), cuda_options());
  Step s = make_step({{1, 50}, {2, 60}});
  for (const std::vector<int64_t>& qo : {std::vector<int64_t>{0, INT64_MAX, INT64_MIN}, {0, int64_t(1) << 62, 3}, {INT64_MIN, INT64_MAX, 3}, {0, -5, 3}}) {
    s.batch.qo_indptr = IndexView(qo.data(), int64_t(qo.size()));
    EXPECT_TRUE(has(error_of([&] { engine.plan(s.batch); }), "plan: qo_indptr: request "));
  }
}

// Steps are planned and run one after another while nothing has been done on the device yet.
TEST_F(GpuEngine, PlanningAheadNeverSpoilsAStepUnderWay) {
  Engine engine(gpu_spec(), large(), cuda_options());
  GpuStream stream(0);
  std::deque<Step> steps;
  std::deque<GpuStep> on_gpu;
  for (int i = 0; i < 9; ++i) {
    steps.push_back(make_step({{1, 100 + 31 * i}, {i, 20 * i}, {2, 40}}, gpu_spec(), uint32_t(i + 1)));
    on_gpu.emplace_back(steps.back());
    on_gpu.back().poison();
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    const Plan plan = engine.plan(steps[i].batch);  // gone before it was run: its memory is taken again by the next step but one
    engine.run(plan, on_gpu[i].tensors, stream.handle());
  }
  stream.synchronize();
  for (size_t i = 0; i < steps.size(); ++i) expect_device_right(on_gpu[i], steps[i], std::to_string(i));
}

TEST_F(GpuEngine, ReplanKeepsTheOldStepAfterAnError) {
  Engine engine(gpu_spec(), large(), cuda_options());
  Step good = make_step({{2, 90}}), bad = make_step({{1, 50}});
  GpuStep g(good);
  Plan plan = engine.plan(good.batch);
  bad.kv_len[0] = -5;
  error_of([&] { engine.replan(plan, bad.batch); }, ErrorCode::invalid_argument);
  g.poison();
  engine.run(plan, g.tensors);
  expect_device_right(g, good);
}

// Two streams, two plans of one engine: they share its partials, so the second waits for the first.
TEST_F(GpuEngine, StreamsOfOneEngineAreOrdered) {
  Engine engine(gpu_spec(), large(), cuda_options());
  Step a = make_step({{1, 900}, {1, 800}}), b = make_step({{1, 700}, {3, 1000}}, gpu_spec(), 7);
  GpuStep ga(a), gb(b);
  GpuStream first(0), second(0);
  const Plan pa = engine.plan(a.batch), pb = engine.plan(b.batch);
  for (int i = 0; i < 3; ++i) {
    ga.poison();
    gb.poison();
    engine.run(pa, ga.tensors, first.handle());
    engine.run(pb, gb.tensors, second.handle());
    second.synchronize();  // alone: the work of the first that it must come after has been done with it
    ga.download_as_it_stands(a);
    expect_gpu_right(a, "the first stream's run was not waited for");
    ga.poison();
    engine.run(pa, ga.tensors, second.handle());
    second.synchronize();
    expect_device_right(ga, a);
    expect_device_right(gb, b);
  }
}

TEST_F(GpuEngine, UploadOnACopyStream) {
  Engine engine(gpu_spec(), large(), cuda_options());
  Step s = make_step({{1, 900}, {1, 800}});
  GpuStep g(s);
  GpuStream copies(0), main(0);
  Plan plan = engine.plan(s.batch);
  for (int i = 0; i < 4; ++i) {
    g.poison();
    engine.upload(plan, copies.handle());
    engine.run(plan, g.tensors, main.handle());
    main.synchronize();
    expect_device_right(g, s);
    engine.replan(plan, s.batch);
  }
}

TEST_F(CudaEngine, AGraphHoldsLaunchesAlone) {
  Engine engine(gpu_spec(), large(), cuda_options());
  GpuStream stream(0);
  Step s = make_step({{1, 2500}, {1, 1}});
  GpuStep g(s);
  Plan plan = engine.plan(s.batch);
  engine.upload(plan, stream.handle());
  gpu.reset();
  stream.begin_capture();
  engine.run(plan, g.tensors, stream.handle());
  stream.end_capture();
  EXPECT_EQ(gpu.count("cuMemcpyHtoDAsync") + gpu.count("cuEventRecord"), 0);
  EXPECT_EQ(gpu.count("cuLaunchKernelEx"), 1);
}

TEST_F(GpuEngine, CaptureMisuseIsRefused) {
  Engine engine(gpu_spec(), large(), cuda_options());
  GpuStream stream(0);
  Step s = make_step({{1, 90}});
  GpuStep g(s);
  Plan plan = engine.plan(s.batch);
  stream.begin_capture();
  EXPECT_TRUE(
      has(error_of([&] { engine.run(plan, g.tensors, stream.handle()); }, ErrorCode::invalid_argument), "upload(plan, stream) before"));
  EXPECT_TRUE(has(error_of([&] { engine.upload(plan, stream.handle()); }, ErrorCode::invalid_argument), "before the capture"));
  stream.end_capture();
  g.poison();
  engine.run(plan, g.tensors, stream.handle());
  stream.synchronize();
  expect_device_right(g, s);
}

TEST_F(CudaEngine, LoadingUnderCaptureIsRefused) {
  AttentionSpec spec = gpu_spec();
  spec.head_dim_qk = spec.head_dim_vo = 176;  // a key of this test's own, which nothing has loaded
  gpu.add_kernel(spec);
  Engine(gpu_spec(), large(), cuda_options());
  GpuStream stream(0);
  stream.begin_capture();
  const std::string text = error_of([&] { Engine(spec, large(), cuda_options()); }, ErrorCode::io);
  const std::string workspace = error_of([&] { Engine(gpu_spec(), large(), cuda_options()); }, ErrorCode::io);  // whose kernels are there
  stream.end_capture();
  EXPECT_TRUE(has(text, "cuModuleLoadData") && has(text, "being captured: make engines and plans")) << text;
  EXPECT_TRUE(has(workspace, "cuMemAlloc") && has(workspace, "; workspace; not while a stream of this thread is being captured")) << workspace;
  EXPECT_NO_THROW(Engine(spec, large(), cuda_options()));
}

TEST_F(GpuEngine, VariantsGetTheirArrays) {
  AttentionSpec spec = gpu_spec();
  spec.variant.range.causal = false;
  spec.variant.alibi = spec.variant.custom_mask = spec.variant.sink = true;
  gpu.add_kernel(spec);
  Engine engine(spec, large(), cuda_options());
  for (int i = 0; i < 3; ++i) {
    Step s = make_step({{1, 300 + i}, {7, 64}, {33, 33 + i}, {2, 129}}, spec);
    GpuStep g(s);
    g.poison();
    const Plan plan = engine.plan(s.batch);
    engine.run(plan, g.tensors);
    expect_device_right(g, s);
  }
}

TEST_F(GpuEngine, PlanOutlivesItsEngine) {
  Step s = make_step({{1, 90}});
  auto engine = std::make_unique<Engine>(s.spec, large(), cuda_options());
  const Plan plan = engine->plan(s.batch);
  engine.reset();
  EXPECT_EQ(plan.total_tokens(), 1);
}

// B103: threads with an engine and a stream each, all at once from the start.
TEST_F(CudaEngine, ThreadsWithEnginesOfTheirOwn) {
  AttentionSpec spec = gpu_spec();
  spec.head_dim_qk = spec.head_dim_vo = 144;  // a key of this test's own: the fake kernel of a key has one spec, heads included
  gpu.add_kernel(spec);
  std::deque<Step> steps;
  std::deque<GpuStep> on_gpu;
  for (int i = 0; i < 8; ++i) {
    steps.push_back(make_step({{1, 200 + 10 * i}, {3, 60}}, spec, uint32_t(i + 1)));
    on_gpu.emplace_back(steps.back());
    on_gpu.back().poison();
  }
  gpu.reset();
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      Engine engine(spec, large(), cuda_options());
      GpuStream stream(0);
      for (int n = 0; n < 5; ++n) {
        const Plan plan = engine.plan(steps[i].batch);
        engine.run(plan, on_gpu[i].tensors, stream.handle());
      }
      stream.synchronize();
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(gpu.count("cuModuleLoadData"), 3);  // each entry once
  for (size_t i = 0; i < 8; ++i) expect_device_right(on_gpu[i], steps[i], std::to_string(i));
}

TEST_F(CudaEngine, SecondDeviceAndTheCallersContext) {
  Step s = make_step({{1, 90}, {20, 40}});
  EngineOptions options = cuda_options();
  options.device = 1;
  Engine engine(s.spec, large(), options);
  EXPECT_EQ(engine.device(), 1);
  GpuStep g(s, 1);
  g.poison();
  const Plan plan = engine.plan(s.batch);
  engine.run(plan, g.tensors);
  expect_device_right(g, s);
  options.device = 2;
  EXPECT_TRUE(has(error_of([&] { Engine(s.spec, large(), options); }, ErrorCode::invalid_argument), "device: got 2, wanted 0 .. 1"));
}

TEST_F(CudaEngine, AutomaticTakesTheGpuWhereItCan) {
  EngineOptions options = cuda_options();
  options.backend = Backend::automatic;
  EXPECT_EQ(Engine(gpu_spec(), large(), options).backend(), Backend::cuda);
  AttentionSpec spec = gpu_spec();
  spec.q_dtype = spec.kv_dtype = DType::f32;
  const Engine engine(spec, large(), options);
  EXPECT_EQ(engine.backend(), Backend::cpu);
  EXPECT_TRUE(has(engine.explain(), "declined attend.sm80.f32.o-bf16.d64.paged.causal: q is f32, wanted f16 or bf16")) << engine.explain();
}

TEST_F(CudaEngine, KernelIsTheCallersChoice) {
  EngineOptions options = cuda_options();
  options.cuda_arch = "sm_90a";
  for (const char* family : {"sm90", "sm80"}) {
    options.kernel = family;
    EXPECT_EQ(Engine(gpu_spec(), large(), options).kernel_key(), std::string("attend.") + family + ".bf16.d64.paged.causal");
  }
  const Engine engine(gpu_spec(), large(), options);
  EXPECT_TRUE(has(engine.explain(), "declined attend.sm90.bf16.d64.paged.causal: options.kernel asks for sm80")) << engine.explain();
  options.policy = Policy::fixed_split;
  const std::string fixed = Engine(gpu_spec(), large(), options).explain();
  EXPECT_TRUE(has(fixed, "declined attend.sm90.bf16.d64.paged.causal.fixed-split: options.kernel asks for sm80")) << fixed;
  EXPECT_TRUE(has(fixed, "declined attend.cpu-portable.bf16.d64.paged.causal: ")) << fixed;
  options.policy = Policy::automatic;
  options.kernel = "sm90";
  AttentionSpec spec = gpu_spec();
  spec.head_dim_qk = spec.head_dim_vo = 80;
  EXPECT_TRUE(has(error_of([&] { Engine(spec, large(), options); }, ErrorCode::unsupported), "attend.sm90.bf16.d80.paged.causal: head dims 80 and 80: wanted 64"));
  options.kernel = "sm95";
  EXPECT_TRUE(has(error_of([&] { Engine(spec, large(), options); }, ErrorCode::invalid_argument), "options.kernel: got \"sm95\", wanted one of sm90, sm80"));
}

TEST_F(CudaEngine, TheCpusTargetIsNoOptionOfAGpu) {
  EngineOptions options = cuda_options();
  options.cpu_target = "portable";
  const std::string text = error_of([&] { Engine(gpu_spec(), large(), options); }, ErrorCode::invalid_argument);
  EXPECT_TRUE(has(text, "options.cpu_target: got portable with backend cuda, wanted it with cpu or automatic")) << text;
}

TEST_F(CudaEngine, NoJitNamesTheMissingKey) {
  AttentionSpec spec = gpu_spec();
  spec.head_dim_qk = spec.head_dim_vo = 112;
  const std::string text = error_of([&] { Engine(spec, large(), cuda_options()); }, ErrorCode::unsupported);
  EXPECT_TRUE(has(text, "attend.sm80.bf16.d112.paged") && has(text, "KVLOOM_NO_JIT")) << text;
}

}  // namespace
}  // namespace kvloom::test
