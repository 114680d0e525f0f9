// Variants of the user's own through the C++ interface: right by REF and by the library's own variants, bound by name, refused by name.
#include "cli/check/check_run.h"
#include "kvloom/cpu/target.h"
#include "tests/variants/variant_texts.h"

namespace kvloom::test {
namespace {

const std::vector<float> kSlopes = {0.03f, 0.11f, 0.2f, 0.45f};

bool same_bits(const Array& a, const Array& b) { return a.bytes == b.bytes; }

void expect_equal(const Step& mine, const Step& own, float tolerance) {
  for (int64_t i = 0; i < own.o.count(); ++i) {
    ASSERT_NEAR(mine.o.get(i), own.o.get(i), tolerance * (1.0f + std::fabs(own.o.get(i)))) << "element " << i;
  }
  for (int64_t i = 0; i < own.lse.count(); ++i) {
    const float a = mine.lse.get(i), b = own.lse.get(i);
    ASSERT_TRUE(a == b || std::fabs(a - b) <= tolerance * (1.0f + std::fabs(b))) << "lse " << i << ": " << a << ", " << b;
  }
}

TEST(UserVariant, AlibiHasTheBitsOfTheLibrarysOwn) {
  Step own = variant_step(nullptr);
  own.spec.variant.alibi = true;
  own.make();
  own.tensors.alibi_slopes = kSlopes.data();
  run_step(own);
  Step mine = variant_step(variant_from_file(example("alibi_slopes")));
  mine.make();
  const VariantParam params[] = {{"slopes", kSlopes.data(), {4}}};
  mine.tensors.params = {params, 1};
  run_step(mine);
  EXPECT_TRUE(same_bits(mine.o, own.o) && same_bits(mine.lse, own.lse));
  expect_right(mine);
}

TEST(UserVariant, SigmoidIsTheLibrarysOwn) {
  Step own = variant_step(nullptr);
  own.spec.variant.reduction = Reduction::sum;
  own.spec.variant.sigmoid_bias = -1.5f;
  own.make();
  own.tensors.lse = {};
  run_step(own);
  Step mine = variant_step(variant_from_file(example("flash_sigmoid")));
  mine.make();
  mine.tensors.lse = {};
  const std::vector<float> bias(4, -1.5f);
  const VariantParam params[] = {{"bias", bias.data(), {4}}};
  mine.tensors.params = {params, 1};
  run_step(mine);
  for (int64_t i = 0; i < own.o.count(); ++i) ASSERT_NEAR(mine.o.get(i), own.o.get(i), 1e-6) << i;
}

TEST(UserVariant, SoftCapAndSinkAreTheLibrarysOwn) {
  const std::vector<float> sinks = {-1.0f, 0.5f, 2.0f, 0.0f};
  Step own = variant_step(nullptr);
  own.spec.variant.soft_cap = 20.0f;
  own.spec.variant.sink = true;
  own.make();
  own.tensors.sink = sinks.data();
  run_step(own);
  Step mine = variant_step(variant_from_file(example("soft_cap_sink")));
  mine.make();
  const VariantParam params[] = {{"cap", 20.0}, {"sinks", sinks.data(), {4}}};
  mine.tensors.params = {params, 2};
  run_step(mine);
  expect_equal(mine, own, 4e-6f);
  // A row without keys: the sink alone.
  for (int h = 0; h < 4; ++h) EXPECT_EQ(mine.lse.get((mine.o.t.shape[0] - 1) * 4 + h), sinks[size_t(h)]);

  mine.tensors.bare_state = own.tensors.bare_state = true;  // finish stays out
  run_step(mine);
  run_step(own);
  expect_equal(mine, own, 4e-6f);
}

TEST(UserVariant, PrefixIsTheBatchsOwn) {
  Step own = variant_step(nullptr);
  own.make();
  const std::vector<int32_t> prefix = {0, 40, 7, 2, 0, 0};
  own.batch.prefix = prefix.data();
  run_step(own);
  Step mine = variant_step(variant_from_file(example("prefix_lm")));
  mine.spec.variant.range = {};
  mine.make();
  const VariantParam params[] = {{"prefix", prefix.data(), {6}}};
  mine.tensors.params = {params, 1};
  run_step(mine);
  expect_equal(mine, own, 2e-6f);
}

// Under every policy, on every target: the range plans, keep masks.
TEST(UserVariant, EveryTargetAndPolicyIsRight) {
  const UserVariant* const user = variant_from_file(example("dilated_window"));
  for (int t = 0; t < cpu::kNumTargets; ++t) {
    if (!cpu::is_available(cpu::Target(t))) continue;
    for (const Policy policy : {Policy::none, Policy::heap, Policy::stream, Policy::fill, Policy::fixed_split, Policy::automatic}) {
      Step s = variant_step(user);
      s.spec.variant.range = {};
      s.make();
      const VariantParam params[] = {{"dilation", 3.0}};
      s.tensors.params = {params, 1};
      EngineOptions options;
      options.policy = policy;
      options.num_ctas = 7;
      options.cpu_target = cpu::name_of(cpu::Target(t));
      run_step(s, options);
      expect_right(s, std::string(options.cpu_target) + " " + std::to_string(int(policy)));
    }
  }
}

TEST(UserVariant, RangesOfSpecAndTextBothHold) {
  Step s = variant_step(variant_from_file(example("dilated_window")));
  s.spec.variant.range = {false, 20, 5};
  Engine engine(s.spec, {8, 64, 1024, 0, 0});
  EXPECT_EQ(engine.spec().variant.range, (KeyRange{true, 20, 5}));
  s.make();
  const VariantParam params[] = {{"dilation", 2.0}};
  s.tensors.params = {params, 1};
  run_step(s);
  expect_right(s);
}

TEST(UserVariant, StandsOnTopOfTheLibrarysOwn) {
  Step s = variant_step(variant_from_file(example("document_mask")));
  s.spec.variant.alibi = true;
  s.spec.variant.soft_cap = 10.0f;
  s.spec.variant.sink = true;
  s.make();
  std::vector<int32_t> document(6 * 300);
  for (size_t i = 0; i < document.size(); ++i) document[i] = int32_t(i % 300) / 25;
  const VariantParam params[] = {{"document", document.data(), {6, 300}}};
  s.tensors.params = {params, 1};
  run_step(s);
  const Distance d = distance_to_ref(s);  // a capped logit is rounded as tanh is
  EXPECT_EQ(d.fault, "");
  EXPECT_LT(d.whole, 4e-6);
}

// Heads of one token keep different keys: what no head keeps is poisoned, what one keeps is not (16 cases, as `kvloom check` has them).
TEST(UserVariant, KeepMayKnowTheHead) {
  check::CheckOptions options;
  options.cases = 16;
  options.of_a_case.user = variant_from_text(
      "struct ByHead {\n  static bool keep(const kvloom::Coord& c) { return (c.kv_pos / 3 + c.q_head) % 3 == 0; "
      "}\n};\nKVLOOM_VARIANT(ByHead)\n");
  const check::CheckReport report = check::run_check(options);
  for (const check::Failure& f : report.failures) ADD_FAILURE() << f.shape << "\n" << f.fault << "\n" << f.command;
}

TEST(UserVariant, ArraysHaveAnyStrides) {
  const UserVariant* const user = variant_from_file(example("document_mask"));
  std::vector<int32_t> document(6 * 300), apart(2 * 6 * 300, -1);
  for (int32_t r = 0; r < 6; ++r) {
    for (int32_t i = 0; i < 300; ++i) apart[size_t(2 * (i * 6 + r))] = document[size_t(r * 300 + i)] = i * (r + 1) / 37;
  }
  Step dense = variant_step(user), strided = variant_step(user);
  dense.make();
  strided.make();
  const VariantParam a[] = {{"document", document.data(), {6, 300}}};
  VariantParam b[] = {{"document", apart.data(), {6, 300}}};
  b[0].stride[0] = 2, b[0].stride[1] = 12;
  dense.tensors.params = {a, 1};
  strided.tensors.params = {b, 1};
  run_step(dense);
  run_step(strided);
  EXPECT_TRUE(same_bits(dense.o, strided.o));
  expect_right(strided);
}

TEST(UserVariant, IsNamedInKeysPlansAndExplanations) {
  const UserVariant* const user = variant_from_file(example("alibi_slopes"));
  EXPECT_EQ(user, variant_from_file(example("alibi_slopes")));
  Step s = variant_step(user), plain = variant_step(nullptr);
  s.make();
  plain.make();
  Engine engine(s.spec, s.capacity()), other(plain.spec, plain.capacity());
  EXPECT_TRUE(has(engine.kernel_key(), ".causal.user-AlibiSlopes")) << engine.kernel_key();
  EXPECT_TRUE(has(engine.explain(), "variant  AlibiSlopes (")) << engine.explain();
  EXPECT_EQ(describe_variant(*user), "AlibiSlopes (" + example("alibi_slopes") + "): hooks logit, slope; parameters slopes f32 [num_qo_heads]");
  EXPECT_NE(engine.plan(s.batch).graph_key(), other.plan(plain.batch).graph_key());
}

TEST(UserVariant, TwoTextsOfOneNameAreTwoVariants) {
  const auto text = [](const char* factor) {
    return std::string("struct Twice {\n  static float logit(float score, const kvloom::Coord&) { return score * ") + factor +
           "; }\n};\nKVLOOM_VARIANT(Twice)\n";
  };
  const UserVariant *const one = variant_from_text(text("1.0f")), *const two = variant_from_text(text("2.0f"));
  EXPECT_NE(one->digest, two->digest);
  Step a = variant_step(one), b = variant_step(two), plain = variant_step(nullptr);
  for (Step* s : {&a, &b, &plain}) s->make(), run_step(*s);
  expect_right(a);
  expect_right(b);
  expect_equal(a, plain, 2e-6f);
  EXPECT_FALSE(same_bits(a.o, b.o));
  Engine engine(a.spec, a.capacity()), other(b.spec, b.capacity());
  EXPECT_NE(engine.plan(a.batch).graph_key(), other.plan(b.batch).graph_key());
}

TEST(UserVariant, WhatItCannotBeCombinedWithIsRefused) {
  Step s = variant_step(variant_from_file(example("soft_cap_sink")));
  s.spec.variant.sink = true;
  EXPECT_TRUE(has(error_of([&] { Engine(s.spec, {1, 1, 1, 0, 0}); }), "SoftCapSink, which has a finish hook"));
  Step sum = variant_step(variant_from_file(example("flash_sigmoid")));
  sum.spec.variant.sink = true;
  EXPECT_TRUE(has(error_of([&] { Engine(sum.spec, {1, 1, 1, 0, 0}); }), "spec.variant.sink"));
  sum.spec.variant.sink = false;
  sum.make();
  const std::vector<float> bias(4, 0.0f);
  const VariantParam params[] = {{"bias", bias.data(), {4}}};
  sum.tensors.params = {params, 1};
  EXPECT_TRUE(has(error_of([&] { run_step(sum); }), "run: lse"));
}

/// The error of a run of the variant in `file` with these parameters.
std::string run_error(const std::string& file, std::vector<VariantParam> params) {
  Step s = variant_step(file.empty() ? nullptr : variant_from_file(example(file)));
  s.make();
  s.tensors.params = {params.data(), int64_t(params.size())};
  return error_of([&] { run_step(s); });
}

TEST(UserVariant, ParametersAreCheckedByName) {
  const std::vector<float> f(8);
  const std::vector<int32_t> i(8 * 300);
  EXPECT_EQ(run_error("alibi_slopes", {}), "run: params: slopes: got none, wanted slopes f32 [num_qo_heads]; AlibiSlopes needs it");
  EXPECT_EQ(run_error("alibi_slopes", {{"slope", f.data(), {4}}}),
            "run: params: slope: got a parameter that AlibiSlopes does not have, wanted one of slopes");
  EXPECT_EQ(run_error("alibi_slopes", {{"slopes", f.data(), {4}}, {"slopes", f.data(), {4}}}),
            "run: params: slopes: got it twice, wanted it once");
  EXPECT_EQ(run_error("alibi_slopes", {{"slopes", i.data(), {4}}}), "run: params: slopes: got i32, wanted f32");
  EXPECT_EQ(run_error("alibi_slopes", {{"slopes", f.data(), {5}}}),
            "run: params: slopes: shape[0]: got 5, wanted 4 (slopes f32 [num_qo_heads])");
  EXPECT_EQ(run_error("alibi_slopes", {{"slopes", f.data(), {2, 2}}}),
            "run: params: slopes: got 2 dimensions, wanted 1 (slopes f32 [num_qo_heads])");
  EXPECT_EQ(run_error("alibi_slopes", {{"slopes", static_cast<const float*>(nullptr), {4}}}),
            "run: params: slopes: got a null pointer, wanted an array (slopes f32 [num_qo_heads])");
  EXPECT_EQ(run_error("alibi_slopes", {{"slopes", 1.0}}), "run: params: slopes: got a number, wanted an array (slopes f32 [num_qo_heads])");
  EXPECT_EQ(run_error("document_mask", {{"document", i.data(), {5, 300}}}),
            "run: params: document: shape[0]: got 5, wanted 6 (document i32 [num_requests, any])");
  EXPECT_EQ(run_error("dilated_window", {{"dilation", i.data(), {1}}}), "run: params: dilation: got an array, wanted a number (i32)");
  EXPECT_EQ(run_error("dilated_window", {{"dilation", 1.5}}), "run: params: dilation: got 1.5, wanted a whole number of i32");
  EXPECT_EQ(run_error("", {{"slopes", f.data(), {4}}}), "run: params: got 1 of them, wanted none; the spec has no variant of the user's");
}

}  // namespace
}  // namespace kvloom::test
