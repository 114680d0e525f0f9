// The comparison: what it forgives (the rounding of the output type) and what it must not.
#include "cli/check/compare.h"

#include "cli/check/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace kvloom::check {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Sample {
  Case c;
  std::vector<double> o, lse;
  std::vector<float> got_o, got_lse;
  explicit Sample(DType type) {
    c.spec.num_qo_heads = c.spec.num_kv_heads = 2;
    c.spec.head_dim_qk = c.spec.head_dim_vo = 128;
    c.spec.o_dtype = type;
    c.q_len = {32};
    c.kv_len = {32};
    for (int i = 0; i < 64 * 128; ++i) o.push_back(stream_value(1, Stream::v, i));
    for (int i = 0; i < 64; ++i) lse.push_back(5.0 + stream_value(1, Stream::q, i));
    for (const double x : o) {
      uint32_t element = 0;
      store_from_float(&element, type, 0, float(x));
      got_o.push_back(load_as_float(&element, type, 0));
    }
    got_lse.assign(lse.begin(), lse.end());
  }
  Errors errors() const { return compare(c, got_o, got_lse, o, lse); }
};

TEST(Compare, RoundingToTheOutputTypeIsFree) {
  for (const DType t : {DType::f32, DType::f16, DType::bf16}) {
    const Errors e = Sample(t).errors();
    EXPECT_EQ(e.fault, "") << name_of(t);
    EXPECT_LE(e.worst_excess, 1e-7);
  }
  const Errors bf16 = Sample(DType::bf16).errors();
  EXPECT_GT(bf16.whole, 1.4e-3);
  EXPECT_LT(bf16.whole, 1.9e-3);
}

// Nothing averages out: one value all along, halfway between two of bf16; and values that f16 has no numbers for.
TEST(Compare, APerfectAnswerIsRightWhateverItsValues) {
  for (const auto& [type, value] : {std::pair{DType::bf16, 1.0 + 0x1p-8}, {DType::f16, 1e-20}}) {
    Sample s(type);
    for (size_t i = 0; i < s.o.size(); ++i) {
      char element[4];
      s.o[i] = value;
      store_from_float(&element, type, 0, float(value));
      s.got_o[i] = load_as_float(&element, type, 0);
    }
    EXPECT_EQ(s.errors().fault, "") << name_of(type);
    s.got_o[4000] = float(2.0 * value);
    s.got_o[4000] += type == DType::f16 ? 1e-3f : 0.0f;
    EXPECT_NE(s.errors().fault, "") << name_of(type);
  }
}

TEST(Compare, AnErrorBelowTheRoundingOfTheOutputIsStillSeen) {
  // 1e-4 of each element: a twentieth of what rounding to bf16 does, fifty times what the arithmetic may do.
  Sample s(DType::bf16);
  for (size_t i = 0; i < s.o.size(); ++i) {
    uint16_t element = float_to_bf16(float(s.o[i] * 1.0001));
    s.got_o[i] = bf16_to_float(element);
  }
  EXPECT_NE(s.errors().fault, "");
}

TEST(Compare, OneWrongElementIsSeen) {
  for (const DType t : {DType::f32, DType::f16, DType::bf16}) {
    Sample s(t);
    s.got_o[4000] += t == DType::f32 ? 1e-4f : 0.05f;
    const Errors e = s.errors();
    EXPECT_NE(e.fault.find("token 15 (request 0, query 15), head 1"), std::string::npos) << e.fault;
  }
}

TEST(Compare, NanAndInfinityAreSeen) {
  for (const float bad : {std::nanf(""), float(kInf)}) {
    Sample s(DType::f32);
    s.got_o[3] = bad;
    const std::string fault = s.errors().fault;
    EXPECT_NE(fault.find("dim 3: never written, or poison that leaked in: got "), std::string::npos) << fault;
    EXPECT_NE(fault.find(std::isnan(bad) ? "got nan, wanted" : "got inf, wanted"), std::string::npos) << fault;
    s.o[3] = bad;  // the right answer is none
    EXPECT_NE(s.errors().fault.find("dim 3: no number in the reference either: a hook makes it: got "), std::string::npos)
        << s.errors().fault;
    Sample l(DType::f32);
    l.got_lse[3] = bad;
    EXPECT_NE(l.errors().fault, "");
  }
}

TEST(Compare, TensorCoresSayTheSameOfARow) {
  for (const float bad : {std::nanf(""), float(kInf)}) {
    Sample s(DType::bf16);
    s.got_o[4000] = bad;
    const std::string fault = compare_gpu(s.c, s.got_o, s.got_lse, s.o, s.lse).fault;
    EXPECT_EQ(fault, s.errors().fault);
    EXPECT_EQ(fault.rfind("token 15 (request 0, query 15), head 1: dim 32: never written, or poison that leaked in: got ", 0), 0u) << fault;
    Sample l(DType::bf16);
    l.got_lse[3] = bad;
    EXPECT_EQ(compare_gpu(l.c, l.got_o, l.got_lse, l.o, l.lse).fault, l.errors().fault);
    EXPECT_NE(l.errors().fault, "");
  }
  Sample right(DType::bf16);
  EXPECT_EQ(compare_gpu(right.c, right.got_o, right.got_lse, right.o, right.lse).fault, "");
}

TEST(Compare, EmptyRowsMustBeExactlyZeroAndMinusInfinity) {
  Sample s(DType::f32);
  for (int d = 0; d < 128; ++d) s.o[size_t(d)] = 0.0, s.got_o[size_t(d)] = 0.0f;
  s.lse[0] = -kInf;
  s.got_lse[0] = float(-kInf);
  EXPECT_EQ(s.errors().fault, "");
  s.got_o[7] = 1e-30f;
  EXPECT_NE(s.errors().fault, "");
  s.got_o[7] = 0.0f;
  s.got_lse[0] = -5e4f;  // a finite stand-in for minus infinity
  EXPECT_NE(s.errors().fault, "");
}

TEST(Compare, AnLseInBaseTwoIsSeen) {
  Sample s(DType::bf16);
  for (float& x : s.got_lse) x *= 1.44269504f;
  EXPECT_NE(s.errors().fault.find("lse"), std::string::npos);
}

}  // namespace
}  // namespace kvloom::check
