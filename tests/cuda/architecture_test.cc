// Engines made for an architecture: what they say of it, what they refuse without a device.
#include "tests/cuda/engine_fixture.h"

namespace kvloom::test {
namespace {

TEST_F(CudaEngine, WithoutADeviceNothingGoesToOne) {
  EngineOptions options = cuda_options();
  options.cuda_arch = "sm_90a";
  Step s = make_step({{1, 100}}, gpu_spec());
  Engine engine(s.spec, large(), options);
  Plan plan = engine.plan(s.batch);
  for (const bool upload : {true, false}) {
    const std::string text = error_of([&] { upload ? engine.upload(plan) : engine.run(plan, s.tensors); }, ErrorCode::unsupported);
    EXPECT_TRUE(has(text, std::string(upload ? "upload" : "run") + ": got an engine made for sm_90a alone, wanted one with a device")) << text;
  }
  const std::string planned = error_of([&] { engine.plan_on_device(DeviceBatch()); }, ErrorCode::unsupported);
  EXPECT_TRUE(has(planned, "plan_on_device: got an engine made for sm_90a alone, wanted one with a device")) << planned;
}

TEST_F(CudaEngine, ExplainSaysWhichKernelAStepLaunches) {
  EngineOptions options = cuda_options();
  options.cuda_arch = "sm_90a";
  AttentionSpec spec = gpu_spec();
  spec.head_dim_qk = spec.head_dim_vo = 128;
  Capacity capacity = large(), roomy = large();
  roomy.max_kv_tokens = 10'000'000;
  Step decode = make_step({{1, 100}}, spec), prefill = make_step({{64, 64}}, spec), both = make_step({{1, 100}, {64, 64}}, spec);
  Engine large(spec, roomy, options);
  EngineOptions second = options;
  second.kernel = "sm80";
  Engine small(spec, capacity, second);
  EXPECT_TRUE(has(small.plan(decode.batch).explain(), "\nlaunch attend_small: items of few rows\n")) << small.plan(decode.batch).explain();
  Step verify = make_step({{16, 100}, {1, 30}}, spec);
  EXPECT_TRUE(has(small.plan(verify.batch).explain(), "\nlaunch attend_memory_32: items of few rows\n")) << small.plan(verify.batch).explain();
  EXPECT_TRUE(has(large.plan(verify.batch).explain(), "\nlaunch attend_memory_32: items of few rows\n")) << large.plan(verify.batch).explain();
  EXPECT_TRUE(has(large.explain(), "\nsteps of up to 32 packed rows alone: 264 CTAs\n  memory   tile 32 packed rows x 64 keys")) << large.explain();
  EXPECT_TRUE(has(small.explain(), "\nsteps of up to 32 packed rows alone: 264 CTAs, shared prefixes are not looked for\n  memory   tile 32 packed rows x 64 keys")) << small.explain();
  EXPECT_TRUE(has(large.plan(decode.batch).explain(), "\nlaunch attend_memory: items of few rows\n")) << large.plan(decode.batch).explain();
  EXPECT_TRUE(has(large.plan(prefill.batch).explain(), "\nlaunch attend_compute: items of many rows\n")) << large.plan(prefill.batch).explain();
  EXPECT_TRUE(has(large.plan(both.batch).explain(), "\nlaunch attend_mixed: items of few rows and of many\n")) << large.plan(both.batch).explain();
}

// Readers of a prefix have more than 32 rows together: levels make steps of many rows of them, which family sm80 leaves alone.
TEST_F(CudaEngine, StepsOfUpTo32RowsThatShareAPrefix) {
  EngineOptions options = cuda_options();
  options.cuda_arch = "sm_90a";
  Capacity capacity = large();
  capacity.max_level_rows = 64, capacity.max_kv_tokens = 40000;
  for (const auto& [kernel, tokens, levels, entry] :
       {std::tuple("sm80", 16, 1, "attend_memory_32"), {"sm80", 1, 2, "attend_small"}, {"sm90", 16, 2, "attend_mixed"}, {"sm90", 1, 2, "attend_mixed"}}) {
    options.kernel = kernel;
    Engine engine(gpu_spec(), capacity, options);
    Step s = make_step(std::vector<Request>(4, {tokens, 4000}));
    for (int r = 1; r < 4; ++r) std::copy_n(s.pages.begin(), 3200 / s.spec.page_size, s.pages.begin() + s.list_indptr[size_t(r)]);
    const Plan plan = engine.plan(s.batch);
    EXPECT_EQ(plan.view().header->num_levels, levels);
    EXPECT_TRUE(has(plan.explain(), std::string("\nlaunch ") + entry + ": ")) << plan.explain();
  }
}

TEST_F(CudaEngine, ExplainKnowsTheRoofsOfTheChipOrSaysThatItDoesNot) {
  EngineOptions options = cuda_options();
  const auto text = [&](const char* arch) {
    options.cuda_arch = arch;
    return Engine(gpu_spec(), large(), options).explain();
  };
  EXPECT_TRUE(has(text("sm_90a"), "820 TFLOP/s of wgmma and 4598 GB/s, measured on H200")) << text("sm_90a");
  EXPECT_TRUE(has(text("sm_90"), "537 TFLOP/s of mma.sync and 4598 GB/s, measured on H200")) << text("sm_90");  // which has no wgmma
  EXPECT_TRUE(has(text("sm_89"), "ridge about 209 FLOP a byte")) << text("sm_89");
  EXPECT_TRUE(has(text("sm_100a"), "the roofs of sm_100a are not known here")) << text("sm_100a");
  EXPECT_FALSE(has(text("sm_100a"), "binds")) << text("sm_100a");
  EXPECT_TRUE(has(text("sm_99"), "planned for 132 SMs (a chip that is not known here: as H100, H200)")) << text("sm_99");
}

// What prefixes must save to become levels, by the family that would run them; and why none are looked for.
TEST_F(CudaEngine, ExplainSaysWhenPrefixesBecomeLevels) {
  EngineOptions options = cuda_options();
  Capacity capacity = large();
  capacity.max_level_rows = 200;
  AttentionSpec spec = gpu_spec();
  const auto text = [&](const char* arch, const char* kernel, Policy policy) {
    options.cuda_arch = arch, options.kernel = kernel, options.policy = policy;
    return Engine(spec, capacity, options).explain();
  };
  const std::string sm90 = text("sm_90a", "sm90", Policy::automatic), sm80 = text("sm_80", "sm80", Policy::automatic), fixed = text("sm_90a", "sm90", Policy::fixed_split);
  EXPECT_TRUE(has(sm90, "\nlevels   prefixes that page tables share are read once where that saves at least 2000 tokens of reading, 16 % of the step's cost (in tokens read by few rows; a tile of many rows counts as what it computes), and 300 tokens for each request that shares; "
                        "where all requests have few rows, an item costs 2400 ns more then, and attend_mixed runs the step\n")) << sm90;
  EXPECT_TRUE(has(sm80, "and 600 tokens for each request that shares; not beside requests of many rows; ")) << sm80;
  EXPECT_TRUE(has(fixed, "\nlevels   shared prefixes are not looked for: under fixed_split a request's bits must not depend on what it shares")) << fixed;
  spec.storage = Storage::ragged, spec.page_size = 1;
  const std::string ragged = text("sm_90a", "sm90", Policy::automatic);
  EXPECT_TRUE(has(ragged, "are not looked for: ragged K and V have no page tables")) << ragged;
  spec = gpu_spec(), options.levels = LevelMode::off;
  const std::string off = text("sm_90a", "sm90", Policy::automatic);
  EXPECT_TRUE(has(off, "are not looked for: options.levels is off\n")) << off;
  options.levels = LevelMode::automatic, capacity.max_level_rows = 0;
  const std::string no_room = text("sm_90a", "sm90", Policy::automatic);
  EXPECT_TRUE(has(no_room, "are not looked for: Capacity.max_level_rows is 0; to have them, set it")) << no_room;
}

// Family sm90 runs these, but not as its name promises; and pages that no box fetches.
TEST_F(CudaEngine, ExplainSaysWhatRunsSlower) {
  EngineOptions options = cuda_options();
  options.cuda_arch = "sm_90a", options.kernel = "sm90";
  const auto text = [&](auto bend) {
    AttentionSpec spec = gpu_spec();
    bend(spec);
    return Engine(spec, large(), options).explain();
  };
  const std::string plain = text([](AttentionSpec&) {}), rows = text([](AttentionSpec& s) { s.page_size = 3; });
  EXPECT_FALSE(has(plain, "\nproducts ") || has(plain, "by boxes")) << plain;
  EXPECT_TRUE(has(rows, "fetch rows one by one; pages of 8, 16, 32, ... tokens are fetched by boxes")) << rows;
  const std::string fp8 = text([](AttentionSpec& s) { s.kv_dtype = DType::e4m3; }), rope = text([](AttentionSpec& s) { s.variant.rope.mode = RopeMode::half_split; });
  EXPECT_TRUE(has(fp8, "\nproducts on mma.sync, in steps of many rows, too: family sm90 has no wgmma for fp8 K and V\n")) << fp8;
  EXPECT_TRUE(has(rope, "family sm90 has no wgmma for fused RoPE\n")) << rope;
  options.policy = Policy::fixed_split;
  const std::string fixed = text([](AttentionSpec&) {});
  EXPECT_TRUE(has(fixed, "family sm90 has no wgmma for fixed_split")) << fixed;
}

TEST_F(CudaEngine, AnArchitectureThatCanNotBeIsRefused) {
  EngineOptions options = cuda_options();
  const auto refusal = [&](const char* arch, ErrorCode code) {
    options.cuda_arch = arch;
    return error_of([&] { Engine(gpu_spec(), large(), options); }, code);
  };
  for (const char* arch : {"", "sm_", "90", "gfx90a", "sm_9", "sm_90ab", "sm_99999999999"}) {
    const std::string text = refusal(arch, ErrorCode::invalid_argument);
    EXPECT_TRUE(has(text, "options.cuda_arch: got \"" + std::string(arch) + "\", wanted an architecture like sm_80")) << text;
  }
  EXPECT_TRUE(has(refusal("sm_75", ErrorCode::unsupported), "got sm_75, wanted sm_80 or newer"));
  options.kernel = "sm90";
  EXPECT_TRUE(has(refusal("sm_90", ErrorCode::unsupported), "sm_90 leaves out the instructions that this family is made of, wanted sm_90a"));
}

TEST_F(CudaEngine, ARefusalForAnArchitectureNamesItAndWhatWouldRun) {
  EngineOptions options = cuda_options();
  options.cuda_arch = "sm_90a";
  AttentionSpec spec = gpu_spec();
  spec.head_dim_qk = spec.head_dim_vo = 40;
  const std::string text = error_of([&] { Engine(spec, large(), options); }, ErrorCode::unsupported);
  EXPECT_TRUE(has(text, "no kernel runs this spec for sm_90a:") && has(text, "the nearest with a kernel is 48")) << text;
  EXPECT_TRUE(has(text, "the engine's backend is cuda; with cpu this kernel would run it")) << text;
  options.cuda_arch = "sm_89";
  spec.head_dim_qk = spec.head_dim_vo = 256;
  EXPECT_TRUE(has(error_of([&] { Engine(spec, large(), options); }, ErrorCode::unsupported), "sm_89 has 101376; with fp8 K and V it fits"));
  spec.kv_dtype = DType::e4m3;
  EXPECT_NO_THROW(Engine(spec, large(), options));
}

// The fewest changes that would do, or none where none do.
TEST_F(CudaEngine, ARefusalForSharedMemoryNamesWhatFits) {
  EngineOptions options = cuda_options();
  options.cuda_arch = "sm_89", options.kernel = "sm80";
  const auto refusal = [&](int32_t qk, int32_t vo, DType kv, RopeMode rope, Policy policy) {
    AttentionSpec spec = gpu_spec();
    spec.head_dim_qk = qk, spec.head_dim_vo = vo, spec.kv_dtype = kv, spec.variant.rope.mode = rope;
    options.policy = policy;
    return error_of([&] { Engine(spec, large(), options); }, ErrorCode::unsupported);
  };
  const std::string rope = refusal(128, 128, DType::e4m3, RopeMode::half_split, Policy::automatic);
  EXPECT_TRUE(has(rope, "sm_89 has 101376; with keys rotated as they are written (append_kv) instead of fused RoPE it fits")) << rope;
  const std::string split = refusal(160, 160, DType::bf16, RopeMode::none, Policy::fixed_split);
  EXPECT_TRUE(has(split, "sm_89 has 101376; with fp8 K and V and another policy than fixed_split it fits")) << split;
}

// Chunks of fixed_split are folded in fp32, beside all else: with 100 KB of shared memory tiles of many rows are smaller for it.
TEST_F(CudaEngine, FixedSplitFitsChipsWithLittleSharedMemory) {
  EngineOptions options = cuda_options();
  options.cuda_arch = "sm_89", options.policy = Policy::fixed_split, options.kernel = "sm80";
  for (const auto& [qk, vo] : {std::pair{80, 80}, {96, 96}, {112, 112}, {128, 128}}) {
    for (const RopeMode rope : {RopeMode::none, RopeMode::half_split}) {
      AttentionSpec spec = gpu_spec();
      spec.head_dim_qk = qk, spec.head_dim_vo = vo, spec.variant.rope.mode = rope;
      EXPECT_NO_THROW(Engine(spec, large(), options)) << qk << " " << vo;
    }
  }
}

}  // namespace
}  // namespace kvloom::test
