// Variants of the user's own on a GPU: their parameters travel with the launch, arrays are where the GPU reads them.
#include "cli/check/check_run.h"
#include "kvloom/runtime/user_variant.h"
#include "tests/cuda/engine_fixture.h"
#include "tests/support/source_file.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/user_texts.h"

namespace kvloom::test {
namespace {

// The fake GPU forbids compiling; the host's compiler may.
const UserVariant* example(const char* name) {
  const Environment may_compile("KVLOOM_NO_JIT", nullptr);
  return variant_from_file(source_file(std::string("examples/variants/") + name + ".h"));
}

/// The kernels of `spec` are there; what the fake driver computes with is in the cache.
void add_kernels(FakeGpu& gpu, const AttentionSpec& spec) {
  {
    const Environment may_compile("KVLOOM_NO_JIT", nullptr);
    runtime::user_stage(spec.variant, cpu::best_target());
  }
  gpu.add_kernel(spec);
  gpu.add_kernel(spec, true);
}

const UserVariant* of_text(const char* text, const char* name) {
  const Environment may_compile("KVLOOM_NO_JIT", nullptr);
  return variant_from_text(text, name);
}

AttentionSpec spec_with(const char* name) {
  AttentionSpec spec = gpu_spec();
  spec.variant.user = example(name);
  return with_user_variant(spec);
}

// As `kvloom check --backend cuda --variant FILE`; the fake driver's arithmetic is the CPU's.
TEST_F(CudaEngine, ChecksOfUsersVariants) {
  for (const char* name : {"alibi_slopes", "document_mask", "flash_sigmoid", "soft_cap_sink"}) {
    check::CheckOptions options;
    options.of_a_case.gpu = true;
    options.of_a_case.user = example(name);
    for (int64_t i = 0; i < 5; ++i) {
      const check::Case c = check::case_of(options, i);
      add_kernels(gpu, c.spec);
      gpu.set_spec(&c.spec);
      const check::CaseResult r = check::run_case(c, options.of_a_case);
      gpu.set_spec(nullptr);
      EXPECT_EQ(r.errors.fault, "") << name << " " << i << ": " << check::describe(c);
      EXPECT_TRUE(has(r.key, ".user-")) << r.key;
    }
  }
}

TEST_F(GpuEngine, ArraysOfUsersVariantsAreDeviceMemory) {
  const AttentionSpec spec = spec_with("alibi_slopes");
  add_kernels(gpu, spec);
  Step s = make_step({{1, 90}, {20, 60}}, spec);
  Engine engine(s.spec, large(), cuda_options());
  EXPECT_TRUE(has(engine.kernel_key(), ".bf16.d64.paged.causal.user-AlibiSlopes")) << engine.kernel_key();
  const Plan plan = engine.plan(s.batch);
  GpuStep g(s);
  g.poison();
  const float slopes[4] = {0.03f, 0.11f, 0.2f, 0.45f};
  const VariantParam here[] = {{"slopes", slopes, {4}}};
  g.tensors.params = {here, 1};
  const std::string text = error_of([&] { engine.run(plan, g.tensors); }, ErrorCode::invalid_argument);
  EXPECT_TRUE(has(text, "run: params: slopes: got host memory")) << text;
  GpuBuffer there(0, sizeof slopes);
  there.upload(slopes, sizeof slopes);
  const VariantParam params[] = {{"slopes", there.as<float>(), {4}}};
  g.tensors.params = {params, 1};
  engine.run(plan, g.tensors);
  s.tensors.params = {here, 1};
  expect_device_right(g, s);
}

// Numbers are copied into the launch: what the caller does with them afterwards is his own affair.
TEST_F(GpuEngine, NumbersOfUsersVariantsTravelWithTheLaunch) {
  const AttentionSpec spec = spec_with("dilated_window");
  add_kernels(gpu, spec);
  Step s = make_step({{1, 90}, {20, 60}}, spec);
  Engine engine(s.spec, large(), cuda_options());
  const Plan plan = engine.plan(s.batch);
  GpuStep g(s);
  g.poison();
  GpuStream stream(0);
  {
    VariantParam params[] = {{"dilation", 3.0}};
    g.tensors.params = {params, 1};
    engine.run(plan, g.tensors, stream.handle());
    params[0].number = 1.0;
  }
  stream.synchronize();
  const VariantParam params[] = {{"dilation", 3.0}};
  s.tensors.params = {params, 1};
  expect_device_right(g, s);
}

constexpr Policy kWays[] = {Policy::automatic, Policy::stream, Policy::fixed_split};

// Chunks that end inside a tile, rows that do not fill one, a request without keys: hooks are asked about rows and keys that there are.
TEST_F(GpuEngine, B33_HooksAreAskedAboutPairsThatThereAre) {
  AttentionSpec spec = gpu_spec();
  spec.variant.user = of_text(kStraying, "straying.h");
  spec = with_user_variant(spec);
  add_kernels(gpu, spec);
  for (const char* kernel : {"sm90", "sm80"}) {
    if (kernel == std::string("sm90") && !gpu.is_fake() && gpus()[0].arch != "sm_90a") continue;
    for (const Policy policy : kWays) {
      SCOPED_TRACE(testing::Message() << kernel << ", " << name_of(policy));
      Step s = make_step({{1, 1000}, {3, 0}, {37, 129}, {5, 2}, {1, 77}}, spec);
      const std::vector<int32_t> q_len = {1, 3, 37, 5, 1};
      std::vector<int32_t> strays(2, 0);
      const VariantParam here[] = {{"q_len", q_len.data(), {5}}, {"kv_len", s.kv_len.data(), {5}}, {"strays", strays.data(), {2}}};
      GpuBuffer q = put(q_len), kv = put(s.kv_len), seen = put(strays);
      const VariantParam there[] = {{"q_len", q.as<int32_t>(), {5}}, {"kv_len", kv.as<int32_t>(), {5}}, {"strays", seen.as<int32_t>(), {2}}};
      EngineOptions options = cuda_options();
      options.policy = policy;
      options.kernel = kernel;
      Engine engine(s.spec, large(), options);
      const Plan plan = engine.plan(s.batch);
      GpuStep g(s);
      g.poison();
      g.tensors.params = {there, 3};
      engine.run(plan, g.tensors);
      s.tensors.params = {here, 3};
      expect_device_right(g, s);
      seen.download(strays.data(), sizeof(int32_t) * 2);
      EXPECT_EQ(strays, std::vector<int32_t>({0, 0}));
    }
  }
}

// The text's own arrays hold what the library's mask holds: decode, prefill, both in one batch.
TEST_F(GpuEngine, B100_AMaskOfTheTextsOwnIsTheLibrarys) {
  AttentionSpec own_spec = gpu_spec(), spec = gpu_spec();
  own_spec.variant.custom_mask = true;
  spec.variant.user = of_text(kOwnMask, "bit_mask.h");
  spec = with_user_variant(spec);
  gpu.add_kernel(own_spec);
  gpu.add_kernel(own_spec, true);
  add_kernels(gpu, spec);
  const std::vector<Request> steps[] = {{{1, 300}, {1, 17}, {1, 0}}, {{33, 33}, {70, 129}}, {{1, 300}, {7, 64}, {5, 3}, {3, 0}}};
  for (const std::vector<Request>& requests : steps) {
    for (const Policy policy : kWays) {
      SCOPED_TRACE(testing::Message() << requests.size() << " requests, " << name_of(policy));
      Step own = make_step(requests, own_spec), mine = make_step(requests, own_spec);
      mine.spec = spec;
      EngineOptions options = cuda_options();
      options.policy = policy;
      GpuBuffer mask = put(own.mask), first = put(own.mask_indptr), kv_len = put(own.kv_len);
      const VariantParam params[] = {{"bits", mask.as<uint8_t>(), {int64_t(own.mask.size())}},
                                     {"first", first.as<int64_t>(), {int64_t(own.mask_indptr.size())}},
                                     {"kv_len", kv_len.as<int32_t>(), {int64_t(own.kv_len.size())}}};
      for (Step* s : {&own, &mine}) {
        Engine engine(s->spec, large(), options);
        const Plan plan = engine.plan(s->batch);
        GpuStep g(*s);
        g.poison();
        if (s == &mine) g.tensors.mask = nullptr, g.tensors.mask_indptr = nullptr, g.tensors.params = {params, 3};
        engine.run(plan, g.tensors);
        g.download(own);  // REF has the library's mask
        expect_gpu_right(own, s == &own ? "the library's" : "the text's");
      }
    }
  }
}

}  // namespace
}  // namespace kvloom::test
