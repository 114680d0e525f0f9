// Every combination of variants against REF, and the hooks by themselves.
#include "kvloom/variants/alibi.h"
#include "kvloom/variants/compose.h"
#include "kvloom/variants/custom_mask.h"
#include "kvloom/variants/plain.h"
#include "kvloom/variants/rope.h"
#include "kvloom/variants/sigmoid.h"
#include "kvloom/variants/sink.h"
#include "kvloom/variants/soft_cap.h"
#include "tests/support/attend_case.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace kvloom::cpu::test {
namespace {

AttendCase small_case() {
  AttendCase c;
  c.spec.num_qo_heads = 4;
  c.spec.num_kv_heads = 2;
  c.spec.head_dim_qk = c.spec.head_dim_vo = 64;
  c.spec.page_size = 8;
  c.spec.variant.range.causal = true;
  c.requests = {{33, 150}, {1, 70}, {5, 3}, {40, 40}};
  c.q_scale_of_data = 3.0f;
  return c;
}

void expect_right(const AttendCase& c, const std::string& what, double whole = 2e-6, double worst_row = 4e-6, double lse = 2e-6) {
  for (const int32_t splits : {1, 3}) {
    Cut cut;
    cut.splits = splits;
    cut.tile_rows = 50;
    for (const Target target : available_targets()) {
      const Errors e = compare_with_ref(c, run(c, cut, target, 2));
      EXPECT_EQ(e.fault, "") << name_of(target) << " " << what;
      EXPECT_LE(e.whole, whole) << name_of(target) << " " << what;
      EXPECT_LE(e.worst_row, worst_row) << name_of(target) << " " << what;
      EXPECT_LE(e.lse, lse) << name_of(target) << " " << what;
    }
  }
}

TEST(Variants, EveryCombination) {
  for (int bits = 0; bits < 64; ++bits) {
    AttendCase c = small_case();
    VariantSpec& v = c.spec.variant;
    v.alibi = bits & 1;
    v.soft_cap = bits & 2 ? 10.0f : 0.0f;
    v.custom_mask = bits & 4;
    v.reduction = bits & 8 ? Reduction::sum : Reduction::softmax;
    v.sigmoid_bias = -1.0f;
    v.range.left = bits & 16 ? 20 : -1;
    v.range.causal = !(bits & 32);
    v.sink = (bits & 24) == 0 && v.alibi;
    if (bits % 3 == 0) c.prefix = {30, 4, 1, 0};
    c.seed = bits + 1;
    c.make();
    expect_right(c, "combination " + std::to_string(bits));
  }
}

TEST(Variants, EveryRope) {
  for (const RopeMode mode : {RopeMode::interleaved, RopeMode::half_split}) {
    for (const int32_t rotary_dim : {0, 16, 48, 64}) {
      for (const bool llama : {false, true}) {
        AttendCase c = small_case();
        RopeSpec& r = c.spec.variant.rope;
        r.mode = mode;
        r.rotary_dim = rotary_dim;
        r.theta = llama ? 500000.0f : 10000.0f;
        if (llama) {
          r.scaling = 8.0f;
          r.low_freq_factor = 1.0f;
          r.high_freq_factor = 4.0f;
        }
        c.spec.kv_dtype = llama ? DType::bf16 : DType::f32;
        c.q_scale_of_data = 1.0f;
        c.make();
        expect_right(c, "rotary_dim " + std::to_string(rotary_dim));
      }
    }
  }
}

/// A million tokens on, the turn is as exact as at the start.
TEST(Variants, RopeFarOut) {
  AttendCase c = small_case();
  c.spec.variant.rope.mode = RopeMode::half_split;
  c.q_scale_of_data = 1.0f;
  c.requests = {{2, 100}};
  c.batch.kv_position = KvPosition::page_table;
  for (int32_t i = 0; i < 20; ++i) c.page_pos.push_back(1000000 + 8 * i);
  c.q_pos = {1000098, 1000099};
  c.make();
  expect_right(c, "far out");
}

TEST(Variants, BareStateLeavesTheSinkOut) {
  AttendCase c = small_case();
  c.spec.variant.sink = true;
  c.make();
  c.params.bare_state = true;
  expect_right(c, "bare");
}

TEST(Variants, B31_MaskIsNeverReadPastItsBits) {
  AttendCase c = small_case();
  c.spec.variant.custom_mask = true;
  c.requests = {{3, 11}, {5, 21}};
  c.make();
  // The same mask at the very end of its block of memory: a read beyond is AddressSanitizer's to report.
  const std::unique_ptr<uint8_t[]> exact(new uint8_t[c.mask.size()]);
  std::memcpy(exact.get(), c.mask.data(), c.mask.size());
  c.params.variant.mask = exact.get();
  expect_right(c, "exact mask");
}

TEST(Variants, B12_RowsWhoseMaskIsEmpty) {
  AttendCase c = small_case();
  c.spec.variant.custom_mask = true;
  c.spec.variant.range.causal = false;
  c.requests = {{8, 8}};
  c.make();
  c.mask.assign(8, 0);
  for (int32_t row = 0; row < 4; ++row) c.mask[row] = 0x0f;
  c.params.variant.mask = c.mask.data();
  // Keys 4..7 are kept by no row: their bytes don't matter.
  for (int64_t t = 4; t < 8; ++t) {
    std::memset(c.k.data() + (c.pages64[0] * c.params.kv.k_page + t * c.params.kv.k_token) * 4, 0xff, c.params.kv.k_token * 4);
    std::memset(c.v.data() + (c.pages64[0] * c.params.kv.v_page + t * c.params.kv.v_token) * 4, 0xff, c.params.kv.v_token * 4);
  }
  for (const Target target : available_targets()) {
    const Output out = run(c, Cut{}, target, 1);
    EXPECT_EQ(compare_with_ref(c, out).fault, "") << name_of(target);
    for (int32_t i = 4 * 4; i < 8 * 4; ++i) EXPECT_EQ(out.lse[i], -std::numeric_limits<float>::infinity());
  }
}

// ---------------------------------------------------------------- hooks by themselves

struct HookParams {
  const float* alibi_slopes;
  float soft_cap = 5.0f;
  float sigmoid_bias = 0.5f;
  const float* sink;
  const uint8_t* mask;
  const int64_t* mask_indptr;
  const int32_t* mask_kv_len;
};

TEST(Variants, ComposeAppliesLogitsInTheOrderWritten) {
  using namespace variants;
  const float slopes[] = {0.25f, -2.0f};
  HookParams p{};
  p.alibi_slopes = slopes;
  const Coord c{0, 0, 10, 4, 4, 1, 0};
  const float biased = 1.0f + -2.0f * (4 - 10);
  EXPECT_FLOAT_EQ(Alibi::logit(1.0f, c, p), biased);
  const float capped = Compose<Alibi, SoftCap>::logit(1.0f, c, p);
  EXPECT_NEAR(capped, 5.0 * std::tanh(biased / 5.0), 1e-5);
  const float other = Compose<SoftCap, Alibi>::logit(1.0f, c, p);
  EXPECT_NEAR(other, 5.0 * std::tanh(1.0 / 5.0) + 12.0, 1e-5);
  EXPECT_NEAR((Compose<SoftCap, Sigmoid>::weight(2.0f, p)), 1.0 / (1.0 + std::exp(-2.5)), 1e-6);
  static_assert(Compose<SoftCap, Sigmoid>::reduction == Reduction::sum);
  static_assert(Compose<SoftCap, Plain>::reduction == Reduction::softmax);
  static_assert(!HasLogit<Compose<CustomMask, Plain>, HookParams>);
  static_assert(!HasKeep<Compose<Alibi, Plain>, HookParams>);
}

TEST(Variants, Keep32IsKeepForEveryKey) {
  const int32_t rows = 7, columns = 77;
  std::mt19937 random(3);
  std::vector<uint8_t> bits((rows * columns + 7) / 8);
  for (uint8_t& b : bits) b = uint8_t(random());
  const int64_t indptr[] = {0, int64_t(bits.size())};
  const int32_t kv_len[] = {columns};
  HookParams p{};
  p.mask = bits.data();
  p.mask_indptr = indptr;
  p.mask_kv_len = kv_len;
  for (int32_t row = 0; row < rows; ++row) {
    for (int32_t first = -40; first < columns + 5; ++first) {
      Coord c{0, row, 0, first, 0, 0, 0};
      const uint32_t word = variants::CustomMask::keep32(c, p);
      for (int32_t i = 0; i < 32; ++i) {
        c.kv_index = first + i;
        const bool inside = c.kv_index >= 0 && c.kv_index < columns;
        const int32_t bit = row * columns + c.kv_index;
        const bool wanted = inside && (bits[bit / 8] >> (bit % 8) & 1);
        ASSERT_EQ(variants::CustomMask::keep(c, p), wanted);
        ASSERT_EQ(bool(word >> i & 1), wanted) << row << " " << c.kv_index;
      }
    }
  }
}

struct RopeParams {
  RopeSpec rope;
  float rope_cos(int32_t pos, int pair) const { return std::cos(0.1f * pos * (pair + 1)); }
  float rope_sin(int32_t pos, int pair) const { return std::sin(0.1f * pos * (pair + 1)); }
};

/// The hook turns a pair as a complex number times e^{i angle}, and turning back gives the pair again.
TEST(Variants, RopeHookIsARotation) {
  RopeParams p;
  p.rope.rotary_dim = 8;
  const Coord there{0, 0, 3, 0, 5, 0, 0}, back{0, 0, -3, 0, -5, 0, 0};
  using Half = variants::Rope<RopeMode::half_split>;
  using Pairs = variants::Rope<RopeMode::interleaved>;
  const float x = 0.7f, y = -1.3f;
  for (int pair = 0; pair < 4; ++pair) {
    const float a = Half::query(x, y, pair, there, p), b = Half::query(y, x, pair + 4, there, p);
    EXPECT_NEAR(a, x * std::cos(0.3f * (pair + 1)) - y * std::sin(0.3f * (pair + 1)), 1e-6);
    EXPECT_NEAR(Half::query(a, b, pair, back, p), x, 1e-6);
    EXPECT_NEAR(Half::query(b, a, pair + 4, back, p), y, 1e-6);
    const float c = Pairs::key(x, y, 2 * pair, there, p), d = Pairs::key(y, x, 2 * pair + 1, there, p);
    EXPECT_NEAR(d, y * std::cos(0.5f * (pair + 1)) + x * std::sin(0.5f * (pair + 1)), 1e-6);
    EXPECT_NEAR(Pairs::key(c, d, 2 * pair, back, p), x, 1e-6);
  }
}

TEST(Variants, SinkHookIsAMerge) {
  const float sinks[] = {-1.0f, 2.0f};
  HookParams p{};
  p.sink = sinks;
  const RowFinish w = variants::Sink::finish(1.0f, 1, p);
  EXPECT_NEAR(w.lse, std::log(std::exp(1.0) + std::exp(2.0)), 1e-6);
  EXPECT_NEAR(w.factor, std::exp(1.0) / (std::exp(1.0) + std::exp(2.0)), 1e-6);
}

}  // namespace
}  // namespace kvloom::cpu::test
