// The texts in examples/variants: random cases of each on the CPU against REF, as `kvloom check --variant` runs them, and its GPU kernel
// compiled for Hopper.
#include "cli/check/check_run.h"
#include "kvloom/api/kernels.h"
#include "tests/jit/nvrtc_here.h"
#include "tests/variants/variant_texts.h"

namespace kvloom::test {
namespace {

class Example : public testing::TestWithParam<const char*> {};

TEST_P(Example, AgreesWithTheReference) {
  check::CheckOptions options;
  options.cases = 16;
  options.seed = 3;
  options.of_a_case.user = variant_from_file(example(GetParam()));
  const check::CheckReport report = check::run_check(options);
  EXPECT_EQ(report.cases, 16);
  for (const check::Failure& f : report.failures) ADD_FAILURE() << f.shape << "\n" << f.fault << "\n" << f.command;
}

TEST_P(Example, CompilesForHopper) {
  NEED_NVRTC();
  const UserVariant* const user = variant_from_file(example(GetParam()));
  const std::string key = "attend.sm80.f16.d64.ragged", source = kernel_source(key, "sm_90a", user);
  EXPECT_TRUE(has(source, "#line 1 \"" + example(GetParam()) + "\"\n// ")) << source;
  EXPECT_NO_THROW(warm_kernel(key, "sm_90a", user));
}

INSTANTIATE_TEST_SUITE_P(Variants, Example,
                         testing::Values("alibi_slopes", "dilated_window", "document_mask", "flash_sigmoid", "prefix_lm", "soft_cap_sink"),
                         [](const auto& info) { return std::string(info.param); });

// The kernel and the reference call the same hooks: one that is no function of its arguments shows.
TEST(Check, AHookThatIsNoFunctionIsFoundOut) {
  check::CheckOptions options;
  options.cases = 3;
  options.of_a_case.user = variant_from_text(
      "struct Unsteady {\n  static float logit(float score, const kvloom::Coord&) {\n    static uint32_t calls = 0;\n    return ++calls % "
      "97 == 0 ? score + "
      "1.0f : score;\n  }\n};\nKVLOOM_VARIANT(Unsteady)\n");
  EXPECT_GT(check::run_check(options).failed, 0);
}

// Values of ranges as wide as a range may be, and of one value.
TEST(Check, ParametersAreDrawnFromTheWholeOfTheirRanges) {
  check::CheckOptions options;
  options.cases = 6;
  options.of_a_case.user = variant_from_text(
      "struct Wide {\n  struct Params {\n    int32_t a;\n    float b;\n    int64_t c, d;\n    kvloom::Array<int64_t, 5> e;\n"
      "    KVLOOM_PARAMS(KVLOOM_PARAM(a, -2147483648.0, 2147483647), KVLOOM_PARAM(b, -3.4e38, 3.4e38), KVLOOM_PARAM(c, -9007199254740992.0, "
      "9007199254740992.0), KVLOOM_PARAM(d, 6.5, 7.5), KVLOOM_PARAM(e, -9007199254740992.0, 9007199254740992.0))\n  };\n"
      "  static bool keep(const kvloom::Coord& c, const Params& p) { return p.d == 7 && (c.kv_pos + p.a + p.c + p.e(3)) % 3 != 0; }\n};\n"
      "KVLOOM_VARIANT(Wide)\n");
  const check::CheckReport report = check::run_check(options);
  EXPECT_EQ(report.cases, 6);
  for (const check::Failure& f : report.failures) ADD_FAILURE() << f.shape << "\n" << f.fault << "\n" << f.command;
}

// GPUs compute by the slope, the CPU and the reference by logit: a check on the CPU finds that they differ.
TEST(Check, ASlopeThatLiesIsFoundOut) {
  const auto failures = [](const char* slope) {
    check::CheckOptions options;
    options.cases = 6;
    options.of_a_case.user = variant_from_text(std::string("struct Sloping {\n  static float slope(const kvloom::Coord& c) { return ") + slope +
                                               "; }\n  static float logit(float score, const kvloom::Coord& c) {\n    return score + 0.25f * "
                                               "float(c.q_head + 1) * float(c.kv_pos - c.q_pos);\n  }\n};\nKVLOOM_VARIANT(Sloping)\n");
    return check::run_check(options).failures;
  };
  EXPECT_TRUE(failures("0.25f * float(c.q_head + 1)").empty());
  for (const char* lie : {"0.25f", "0.25f * float(c.q_head)", "0.25f * float(c.kv_pos + 1)"}) {
    const auto found = failures(lie);
    ASSERT_FALSE(found.empty()) << lie;
    EXPECT_TRUE(has(found[0].fault, "variant: slope and logit don't agree: at kv_pos ")) << found[0].fault;
  }
}

// The line that a failure prints brings the variant along.
TEST(Check, CommandsNameTheVariant) {
  check::CheckOptions options;
  options.of_a_case.user = variant_from_file(example("prefix_lm"));
  EXPECT_TRUE(has(check::command_of(options, 3, {}), "--backend cpu --variant " + example("prefix_lm") + " --case 1:3"));
}

TEST(Key, AUsersVariantNeedsItsText) {
  const UserVariant* const user = variant_from_file(example("prefix_lm"));
  const std::string key = "attend.sm80.bf16.d128.paged.user-PrefixLm.fixed-split";
  EXPECT_TRUE(has(error_of([&] { kernel_source(key, "sm_90a"); }), "--variant FILE"));
  EXPECT_TRUE(has(error_of([&] { kernel_source(key, "sm_90a", variant_from_file(example("alibi_slopes"))); }), "AlibiSlopes"));
  EXPECT_EQ(kernel_source(key, "sm_90a", user).substr(0, 3 + key.size()), "// " + key);
  EXPECT_EQ(kernel_source("attend.sm80.bf16.d128.paged.fixed-split", "sm_90a", user), kernel_source(key, "sm_90a", user));
}

}  // namespace
}  // namespace kvloom::test
