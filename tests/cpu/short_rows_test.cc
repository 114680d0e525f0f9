// The short_rows kernel against REF: row counts, head groups, dims, dtypes, layouts, windows and variants, on every target.
#include "tests/support/attend_case.h"

#include <gtest/gtest.h>

#include <limits>

namespace kvloom::cpu::test {
namespace {

AttentionSpec decode_spec(int32_t qo_heads = 8, int32_t kv_heads = 2, int32_t dim = 64) {
  AttentionSpec s;
  s.num_qo_heads = qo_heads;
  s.num_kv_heads = kv_heads;
  s.head_dim_qk = s.head_dim_vo = dim;
  s.page_size = 16;
  s.variant.range.causal = true;
  return s;
}

/// Lengths around every edge of a tile of 32 keys and a page of 16.
const std::vector<Lengths> kDecode = {{1, 1}, {1, 0}, {1, 31}, {1, 32}, {1, 33}, {1, 65}, {1, 150}};

Cut whole_heads(const AttentionSpec& s, int32_t tile_rows) {
  Cut c;
  c.tile_rows = tile_rows;
  c.heads = s.num_kv_heads;
  c.kernel_class = 0;
  return c;
}

void expect_right(const AttendCase& c, const Cut& cut, double tolerance = 2e-6) {
  for (const Target target : available_targets()) {
    const Errors e = compare_with_ref(c, run(c, cut, target, 2));
    EXPECT_EQ(e.fault, "") << name_of(target);
    EXPECT_LE(e.whole, tolerance) << name_of(target);
    EXPECT_LE(e.worst_row, 2 * tolerance) << name_of(target);
    EXPECT_LE(e.lse, tolerance) << name_of(target);
  }
}

TEST(ShortRows, EveryRowCount) {
  for (const int32_t group : {1, 2, 3, 4, 5, 6, 7, 8, 11, 16, 64}) {
    SCOPED_TRACE(group);
    AttendCase c;
    c.spec = decode_spec(2 * group, 2);
    c.requests = {{1, 1}, {1, 50}, {1, 97}};
    c.make();
    expect_right(c, whole_heads(c.spec, group));
  }
}

TEST(ShortRows, LengthsAroundEveryEdge) {
  AttendCase c;
  c.spec = decode_spec();
  c.requests = kDecode;
  c.make();
  expect_right(c, whole_heads(c.spec, 4));
  Cut split = whole_heads(c.spec, 4);
  split.splits = 3;
  expect_right(c, split);
}

TEST(ShortRows, SpeculativeRowsAreMaskedByPosition) {
  AttendCase c;
  c.spec = decode_spec(6, 2);
  c.requests = {{16, 16}, {5, 100}, {16, 70}, {7, 3}, {2, 33}};
  c.make();
  expect_right(c, whole_heads(c.spec, 16));
  expect_right(c, whole_heads(c.spec, 7));
}

TEST(ShortRows, HeadDims) {
  for (const int32_t dim : {16, 40, 72, 80, 96, 100, 128, 256, 512}) {
    SCOPED_TRACE(dim);
    AttendCase c;
    c.spec = decode_spec(4, 2, dim);
    c.requests = {{1, 70}, {3, 20}};
    c.spec.head_dim_vo = dim == 96 ? 64 : dim;
    c.make();
    expect_right(c, whole_heads(c.spec, 8), 3e-6);
  }
}

TEST(ShortRows, DTypesAndLayouts) {
  for (const DType t : {DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2}) {
    for (const int32_t page_size : {1, 5, 16}) {
      for (const bool outside : {false, true}) {
        SCOPED_TRACE(testing::Message() << name_of(t) << " page " << page_size << (outside ? " HND" : " NHD"));
        AttendCase c;
        c.spec = decode_spec(8, 4, 96);
        c.spec.kv_dtype = t;
        c.spec.q_dtype = is_fp8(t) ? DType::bf16 : t;
        c.spec.page_size = page_size;
        c.heads_outside_tokens = outside;
        c.page_ids_64 = page_size == 5;
        if (is_fp8(t)) {
          c.k_scales = {0.5f, 1.0f, 2.0f, 0.25f};
          c.v_scales = {3.0f, 0.5f, 1.0f, 2.0f};
        }
        c.requests = kDecode;
        c.make();
        expect_right(c, whole_heads(c.spec, 2));
      }
    }
  }
}

TEST(ShortRows, RaggedStorage) {
  for (const bool outside : {false, true}) {
    AttendCase c;
    c.spec = decode_spec();
    c.spec.storage = Storage::ragged;
    c.spec.page_size = 1;
    c.heads_outside_tokens = outside;
    c.requests = kDecode;
    c.make();
    expect_right(c, whole_heads(c.spec, 4));
  }
}

TEST(ShortRows, ManyHeadsGoInUnits) {
  AttendCase c;
  c.spec = decode_spec(40, 40, 128);  // 40 heads x 32 keys x 1 KiB: ten units a tile
  c.requests = {{1, 100}, {2, 45}};
  c.make();
  expect_right(c, whole_heads(c.spec, 4));
}

TEST(ShortRows, MultiHeadLatentAttention) {
  AttendCase c;
  c.spec = decode_spec(128, 1, 576);
  c.spec.head_dim_vo = 512;
  c.spec.kv_dtype = DType::bf16;
  c.spec.q_dtype = DType::bf16;
  c.requests = {{1, 70}};
  c.make();
  c.params.kv.v = c.params.kv.k;  // the value is the first 512 dims of the key
  c.params.kv.v_page = c.params.kv.k_page;
  c.params.kv.v_token = c.params.kv.k_token;
  c.params.kv.v_head = c.params.kv.k_head;
  expect_right(c, whole_heads(c.spec, 128), 3e-6);
}

TEST(ShortRows, WindowsBeginInsidePages) {
  for (const int32_t left : {0, 1, 15, 31, 32, 60}) {
    for (const int32_t q : {1, 5}) {
      SCOPED_TRACE(testing::Message() << "left " << left << " q " << q);
      AttendCase c;
      c.spec = decode_spec();
      c.spec.variant.range.left = left;
      c.requests = {{q, 150}, {q, 33}, {q, 8}};
      c.make();
      expect_right(c, whole_heads(c.spec, 20));
      c.prefix = {3, 40, 0};  // keys at positions before these are kept as well: a gap, then the window
      c.batch.prefix = c.prefix.data();
      expect_right(c, whole_heads(c.spec, 20));
    }
  }
}

TEST(ShortRows, KeysThatNoRowKeepsAreNotRead) {
  AttendCase c;
  c.spec = decode_spec();
  c.spec.variant.range.left = 20;
  c.requests = {{1, 200}};
  c.make();
  c.prefix = {10};
  c.batch.prefix = c.prefix.data();
  const Output before = run(c, whole_heads(c.spec, 4), best_target(), 1);
  for (int32_t entry = 1; entry < 11; ++entry) {  // tokens 16 .. 175: behind the prefix, before the window
    c.pages32[entry] = std::numeric_limits<int32_t>::max();
  }
  EXPECT_EQ(run(c, whole_heads(c.spec, 4), best_target(), 1), before);
}

TEST(ShortRows, VariantsGoThroughTheScoreStage) {
  for (int features = 0; features < 32; ++features) {
    SCOPED_TRACE(features);
    AttendCase c;
    c.spec = decode_spec();
    c.spec.variant.alibi = features & 1;
    c.spec.variant.soft_cap = features & 2 ? 5.0f : 0.0f;
    c.spec.variant.custom_mask = features & 4;
    c.spec.variant.sink = (features & 8) && !(features & 16);
    if (features & 16) c.spec.variant.reduction = Reduction::sum;
    c.requests = {{1, 100}, {3, 40}, {1, 5}};
    c.make();
    expect_right(c, whole_heads(c.spec, 12), 4e-6);
  }
}

TEST(ShortRows, FusedRope) {
  for (const RopeMode mode : {RopeMode::interleaved, RopeMode::half_split}) {
    for (const DType t : {DType::f32, DType::bf16}) {
      AttendCase c;
      c.spec = decode_spec();
      c.spec.kv_dtype = t;
      c.spec.variant.rope.mode = mode;
      c.spec.variant.rope.rotary_dim = mode == RopeMode::interleaved ? 32 : 0;
      c.requests = {{1, 100}, {3, 40}};
      c.make();
      expect_right(c, whole_heads(c.spec, 12), 4e-6);
    }
  }
}

TEST(ShortRows, ListedPositions) {
  AttendCase c;
  c.spec = decode_spec();
  c.requests = {{1, 90}, {2, 40}};
  c.batch.kv_position = KvPosition::page_table;
  c.make();
  for (size_t i = 0; i < c.pages32.size(); ++i) c.page_pos.push_back(int32_t(i % 5) * 24);
  c.params.page_pos = c.page_pos.data();
  c.spec.variant.range.left = 50;
  c.params.variant.range.left = 50;
  expect_right(c, whole_heads(c.spec, 8));
}

/// A row's bits depend on its own keys, not on the rows or heads that are computed beside it.
TEST(ShortRows, RowsDoNotTouchEachOther) {
  AttendCase c;
  c.spec = decode_spec(12, 2, 80);
  c.spec.kv_dtype = DType::bf16;
  c.requests = {{4, 77}, {3, 130}};
  c.make();
  for (const Target target : available_targets()) {
    const Output whole = run(c, whole_heads(c.spec, 24), target, 2);
    Cut one = whole_heads(c.spec, 1);
    one.heads = 1;
    EXPECT_EQ(run(c, one, target, 1), whole) << name_of(target);
    Cut five = whole_heads(c.spec, 5);
    EXPECT_EQ(run(c, five, target, 2), whole) << name_of(target);
  }
}

}  // namespace
}  // namespace kvloom::cpu::test
