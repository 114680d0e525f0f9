// append_kv and apply_rope: every token in its slot and nothing else touched; types, layouts, tables, scales, rotation.
#include "kvloom/api/ops.h"
#include "kvloom/attn/rope.h"
#include "tests/support/tensors.h"

#include <gtest/gtest.h>

#include <numeric>

namespace kvloom::test {
namespace {

/// Where (page, slot, head, dim) lies in a cache of `layout`.
int64_t cache_index(const Tensor& t, KvLayout layout, int64_t page, int64_t slot, int64_t head, int64_t dim) {
  const bool nhd = layout == KvLayout::nhd;
  return page * t.stride[0] + slot * t.stride[nhd ? 1 : 2] + head * t.stride[nhd ? 2 : 1] + dim;
}

Array cache(DType dtype, KvLayout layout, int64_t pages, int64_t page_size, int64_t heads, int64_t dim) {
  Array a = layout == KvLayout::nhd ? Array(dtype, {pages, page_size, heads, dim}) : Array(dtype, {pages, heads, page_size, dim});
  std::memset(a.bytes.data(), 0x7f, a.bytes.size());
  return a;
}

/// Two requests of lengths 9 and 4 into pages in a shuffled order; what the cache should hold is written element by element.
struct AppendCase {
  KvLayout layout = KvLayout::nhd;
  DType from = DType::f32, to = DType::f32;
  int32_t page_size = 4;
  bool dense = false, wide = false;
  RopeSpec rope;
  ScaleParams scale;
  static constexpr int64_t heads = 3, dim_qk = 24, dim_vo = 17, tokens = 14;
  std::vector<int32_t> request, pos, rope_pos;
  std::vector<int32_t> pages;
  std::vector<int64_t> indptr, pages_wide;
  AppendBatch batch;

  void make() {
    for (int32_t i = 0; i < 9; ++i) request.push_back(1), pos.push_back(i);
    request.push_back(-1), pos.push_back(123456789);  // padding: its position is never looked at
    for (int32_t i = 0; i < 4; ++i) request.push_back(0), pos.push_back(3 + i);
    const int32_t width = (9 + page_size - 1) / page_size;
    std::vector<int32_t> ids(size_t(2 * width));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(5));
    pages = ids;
    indptr = {0, width, 2 * width};
    pages_wide.assign(pages.begin(), pages.end());
    batch = {tokens, request.data(), pos.data(), nullptr, 2, {}, {}, 0};
    batch.pages = wide ? IndexView(pages_wide.data(), 2 * width) : IndexView(pages.data(), 2 * width);
    if (dense) batch.table_stride = width;
    if (!dense) batch.list_indptr = IndexView(indptr.data(), 3);
  }
  int64_t page_of(int64_t token) const { return pages[size_t(indptr[size_t(request[size_t(token)])] + pos[size_t(token)] / page_size)]; }
};

/// The value that dim `d` of row x [dim] has after rotation at `pos`, in double.
double rotated(const RopeSpec& rope, const std::vector<double>& x, int32_t d, int32_t pos) {
  const int32_t rotary = rotary_dim(rope, int32_t(x.size()));
  if (rope.mode == RopeMode::none || d >= rotary) return x[size_t(d)];
  const double angle = rope_frequency(rope, int32_t(x.size()), rope_pair(rope.mode, d, rotary)) * pos;
  return x[size_t(d)] * std::cos(angle) + rope_sign(rope.mode, d, rotary) * x[size_t(rope_partner(rope.mode, d, rotary))] * std::sin(angle);
}

/// Checks K (rotated) or V of `c` in `out`; every slot that no token went to still holds 0x7f.
void expect_cache(const AppendCase& c, const Array& in, const Array& out, bool is_key, double tolerance) {
  const int64_t dim = in.t.shape[2];
  std::vector<char> touched(out.bytes.size() / size_t(size_of(c.to)), 0);
  for (int64_t i = 0; i < c.tokens; ++i) {
    if (c.request[size_t(i)] < 0) continue;
    for (int64_t h = 0; h < c.heads; ++h) {
      std::vector<double> row;
      for (int64_t d = 0; d < dim; ++d) row.push_back(at(in, i, h, d));
      const float scale =
          is_key ? (c.scale.k_per_head ? c.scale.k_per_head[h] : c.scale.k) : (c.scale.v_per_head ? c.scale.v_per_head[h] : c.scale.v);
      const int32_t pos = c.batch.rope_pos ? c.batch.rope_pos[i] : c.pos[size_t(i)];
      for (int32_t d = 0; d < dim; ++d) {
        const double want = (is_key ? rotated(c.rope, row, d, pos) : row[size_t(d)]) / scale;
        const int64_t at_out = cache_index(out.t, c.layout, c.page_of(i), c.pos[size_t(i)] % c.page_size, h, d);
        touched[size_t(at_out)] = 1;
        ASSERT_NEAR(out.get(at_out), want, tolerance * std::max(is_key && c.rope.mode != RopeMode::none ? 1.0 : 1.0 / 64, std::fabs(want)))
            << "token " << i << " head " << h << " dim " << d;
      }
    }
  }
  for (size_t i = 0; i < touched.size(); ++i) {
    if (touched[i]) continue;
    for (int b = 0; b < size_of(c.to); ++b) ASSERT_EQ(out.bytes[i * size_t(size_of(c.to)) + size_t(b)], 0x7f);
  }
}

void run_append(AppendCase& c, double tolerance) {
  c.make();
  const Array k_new = std::move(Array(c.from, {c.tokens, c.heads, c.dim_qk}).normal(1)),
              v_new = std::move(Array(c.from, {c.tokens, c.heads, c.dim_vo}).normal(2));
  const Array k = cache(c.to, c.layout, int64_t(c.pages.size()), c.page_size, c.heads, c.dim_qk);
  const Array v = cache(c.to, c.layout, int64_t(c.pages.size()), c.page_size, c.heads, c.dim_vo);
  append_kv(k_new, v_new, c.batch, k, v, c.layout, c.page_size, c.rope, c.scale);
  expect_cache(c, k_new, k, true, tolerance);
  expect_cache(c, v_new, v, false, tolerance);
}

TEST(AppendKv, EveryPageSizeLayoutAndTable) {
  for (const int32_t page_size : {1, 2, 3, 5, 16}) {
    for (const KvLayout layout : {KvLayout::nhd, KvLayout::hnd}) {
      for (const bool dense : {false, true}) {
        for (const bool wide : {false, true}) {
          AppendCase c;
          c.page_size = page_size;
          c.layout = layout;
          c.dense = dense;
          c.wide = wide;
          run_append(c, 0.0);
        }
      }
    }
  }
}

TEST(AppendKv, EveryTypeIntoEveryType) {
  for (const DType from : {DType::f32, DType::f16, DType::bf16}) {
    for (const DType to : {DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2}) {
      AppendCase c;
      c.from = from;
      c.to = to;
      run_append(c, to == DType::e5m2 ? 0.13 : to == DType::e4m3 ? 0.065 : to == DType::bf16 ? 0.004 : 0.0005);
    }
  }
}

TEST(AppendKv, ScalesOfAnFp8Cache) {
  AppendCase c;
  c.to = DType::e4m3;
  c.scale.k = 0.037f;
  c.scale.v = 2.5f;
  run_append(c, 0.065);
  AppendCase heads;
  heads.to = DType::e5m2;
  const float k_scales[] = {0.25f, 1.0f, 3.0f}, v_scales[] = {2.0f, 0.01f, 1.0f};
  heads.scale.k_per_head = k_scales;
  heads.scale.v_per_head = v_scales;
  run_append(heads, 0.13);
}

TEST(AppendKv, Fp8SaturatesAndKeepsNaN) {
  const float values[] = {1e6f, -1e6f, NAN, 448.0f, -0.0f, 1e-9f, INFINITY, 0.0f};
  Array k_new(DType::f32, {1, 1, 8});
  for (int64_t i = 0; i < 8; ++i) k_new.set(i, values[i]);
  const int32_t zero[] = {0}, page[] = {0};
  const int64_t indptr[] = {0, 1};
  AppendBatch b{1, zero, zero, nullptr, 1, IndexView(indptr, 2), IndexView(page, 1), 0};
  const Array k(DType::e4m3, {1, 1, 1, 8});
  append_kv(k_new, {}, b, k, {}, KvLayout::nhd, 1);
  const uint8_t want[] = {0x7e, 0xfe, 0x7f, 0x7e, 0x80, 0x00, 0x7e, 0x00};
  EXPECT_EQ(std::memcmp(k.bytes.data(), want, 8), 0);
}

TEST(AppendKv, RotatesKeysAtTheirPositionsAndLeavesValues) {
  for (const RopeMode mode : {RopeMode::interleaved, RopeMode::half_split}) {
    for (const int32_t rotary : {0, 2, 10, 24}) {
      AppendCase c;
      c.rope.mode = mode;
      c.rope.rotary_dim = rotary;
      c.rope.theta = 5e5f;
      c.rope.scaling = 8.0f;
      c.rope.low_freq_factor = 1.0f;
      c.rope.high_freq_factor = 4.0f;
      run_append(c, 5e-7);
    }
  }
}

TEST(AppendKv, B27_RotationTakesAnOffsetOfItsOwn) {
  AppendCase c;
  c.rope.mode = RopeMode::half_split;
  for (int32_t i = 0; i < 14; ++i) c.rope_pos.push_back(1000003 - 71 * i);
  c.make();
  c.batch.rope_pos = c.rope_pos.data();
  const Array k_new = std::move(Array(c.from, {c.tokens, c.heads, c.dim_qk}).normal(1));
  const Array k = cache(c.to, c.layout, int64_t(c.pages.size()), c.page_size, c.heads, c.dim_qk);
  append_kv(k_new, {}, c.batch, k, {}, c.layout, c.page_size, c.rope);
  expect_cache(c, k_new, k, true, 5e-7);
}

TEST(AppendKv, B60_KAndVSideBySideInOnePage) {
  AppendCase c;
  c.make();
  const int64_t pages = int64_t(c.pages.size()), width = c.dim_qk + c.dim_vo;
  Array both(DType::f32, {pages, c.page_size, c.heads, width});
  Tensor k = both, v = both;
  k.shape[3] = c.dim_qk;
  v.shape[3] = c.dim_vo;
  v.data = static_cast<float*>(v.data) + c.dim_qk;
  const Array k_new = std::move(Array(c.from, {c.tokens, c.heads, c.dim_qk}).normal(1)),
              v_new = std::move(Array(c.from, {c.tokens, c.heads, c.dim_vo}).normal(2));
  append_kv(k_new, v_new, c.batch, k, v, c.layout, c.page_size);
  for (int64_t i = 0; i < c.tokens; ++i) {
    if (c.request[size_t(i)] < 0) continue;
    for (int64_t h = 0; h < c.heads; ++h) {
      const int64_t slot = c.pos[size_t(i)] % c.page_size;
      for (int64_t d = 0; d < c.dim_qk; ++d) ASSERT_EQ(at(k, c.page_of(i), slot, h, d), at(k_new, i, h, d));
      for (int64_t d = 0; d < c.dim_vo; ++d) ASSERT_EQ(at(v, c.page_of(i), slot, h, d), at(v_new, i, h, d));
    }
  }
}

TEST(AppendKv, BigAppendsByThreadsHaveTheBitsOfSmallOnes) {
  const int32_t tokens = 600, heads = 8, dim = 64;
  std::vector<int32_t> request(tokens, 0), pos(tokens), pages((tokens + 15) / 16);
  std::iota(pos.begin(), pos.end(), 0);
  std::iota(pages.begin(), pages.end(), 0);
  AppendBatch b{tokens, request.data(), pos.data(), nullptr, 1, {}, IndexView(pages.data(), int64_t(pages.size())), int64_t(pages.size())};
  const Array k_new = std::move(Array(DType::bf16, {tokens, heads, dim}).normal(1)),
              v_new = std::move(Array(DType::bf16, {tokens, heads, dim}).normal(2));
  const RopeSpec rope{RopeMode::interleaved};
  const Array k = cache(DType::e4m3, KvLayout::hnd, int64_t(pages.size()), 16, heads, dim),
              v = cache(DType::e4m3, KvLayout::hnd, int64_t(pages.size()), 16, heads, dim);
  const Array k1 = cache(DType::e4m3, KvLayout::hnd, int64_t(pages.size()), 16, heads, dim),
              v1 = cache(DType::e4m3, KvLayout::hnd, int64_t(pages.size()), 16, heads, dim);
  append_kv(k_new, v_new, b, k, v, KvLayout::hnd, 16, rope);
  for (int32_t t = 0; t < tokens; ++t) {
    Tensor k_row = k_new, v_row = v_new;
    k_row.shape[0] = v_row.shape[0] = 1;
    k_row.data = static_cast<uint16_t*>(k_row.data) + t * heads * dim;
    v_row.data = static_cast<uint16_t*>(v_row.data) + t * heads * dim;
    AppendBatch one = b;
    one.num_tokens = 1;
    one.pos = pos.data() + t;
    append_kv(k_row, v_row, one, k1, v1, KvLayout::hnd, 16, rope);
  }
  EXPECT_EQ(k.bytes, k1.bytes);
  EXPECT_EQ(v.bytes, v1.bytes);
}

TEST(ApplyRope, EveryTypeAndStrideInPlace) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const RopeMode mode : {RopeMode::interleaved, RopeMode::half_split}) {
      const int64_t tokens = 5, heads = 3, dim = 20;
      Array wide = std::move(Array(dtype, {tokens, heads, 28}).normal(3));
      const Array before = std::move(Array(dtype, {tokens, heads, 28}).normal(3));
      Tensor x = wide;
      x.shape[2] = dim;
      RopeSpec rope{mode};
      rope.rotary_dim = 12;
      const int32_t pos[] = {0, 1, 7, 131071, -3};
      apply_rope(x, pos, rope);
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t h = 0; h < heads; ++h) {
          std::vector<double> row;
          for (int64_t d = 0; d < dim; ++d) row.push_back(before.get((t * heads + h) * 28 + d));
          for (int32_t d = 0; d < 28; ++d) {
            const float got = wide.get((t * heads + h) * 28 + d);
            if (d >= 12) {
              ASSERT_EQ(got, before.get((t * heads + h) * 28 + d));
            } else {
              ASSERT_NEAR(got, rotated(rope, row, d, pos[t]), dtype == DType::bf16 ? 0.02 : dtype == DType::f16 ? 0.003 : 2e-6);
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvloom::test
