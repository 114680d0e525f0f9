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
  EXPECT_TRUE(has(small.plan(decode.batch).explain(), "\nlaunch attend_small\n")) << small.plan(decode.batch).explain();
  EXPECT_TRUE(has(large.plan(decode.batch).explain(), "\nlaunch attend_memory\n")) << large.plan(decode.batch).explain();
  EXPECT_TRUE(has(large.plan(prefill.batch).explain(), "\nlaunch attend_compute\n")) << large.plan(prefill.batch).explain();
  EXPECT_TRUE(has(large.plan(both.batch).explain(), "\nlaunch attend_mixed\n")) << large.plan(both.batch).explain();
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

// What prefixes must save to become levels, by the family that would run them; nothing where none are looked for.
TEST_F(CudaEngine, ExplainSaysWhenPrefixesBecomeLevels) {
  EngineOptions options = cuda_options();
  const auto text = [&](const char* arch, const char* kernel, Policy policy) {
    options.cuda_arch = arch, options.kernel = kernel, options.policy = policy;
    return Engine(gpu_spec(), large(), options).explain();
  };
  EXPECT_TRUE(has(text("sm_90a", "sm90", Policy::automatic), "\nlevels   prefixes that save 300 tokens of reading for each request")) << text("sm_90a", "sm90", Policy::automatic);
  EXPECT_TRUE(has(text("sm_90a", "sm90", Policy::automatic), "2400 ns an item more, run by attend_mixed\n"));
  EXPECT_TRUE(has(text("sm_80", "sm80", Policy::automatic), "\nlevels   prefixes that save 600 tokens")) << text("sm_80", "sm80", Policy::automatic);
  EXPECT_FALSE(has(text("sm_90a", "sm90", Policy::fixed_split), "\nlevels ")) << "they would hang on who shares";
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
  EXPECT_TRUE(has(error_of([&] { Engine(spec, large(), options); }, ErrorCode::unsupported), "sm_89 has 101376; fp8 K and V fit"));
  spec.kv_dtype = DType::e4m3;
  EXPECT_NO_THROW(Engine(spec, large(), options));
}

}  // namespace
}  // namespace kvloom::test
