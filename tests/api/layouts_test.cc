// The same keys and values however they are stored: every layout, stride, table and index type gives REF, and the bits of the plain form.
#include "tests/support/step.h"

#include <gtest/gtest.h>

namespace kvloom::test {
namespace {

Step mixed_step() {
  Step s;
  s.spec = small_spec();
  s.requests = {{1, 130}, {5, 77}, {20, 20}, {0, 9}, {1, 1}};
  s.make();
  return s;
}

EngineOptions few_ctas() {
  EngineOptions o;
  o.num_ctas = 7;
  o.threads = 2;
  return o;
}

/// O and LSE bits after planning and running `s`.
std::pair<std::vector<char>, std::vector<char>> run(Step& s, const EngineOptions& options = few_ctas()) {
  Engine engine(s.spec, s.capacity(), options);
  s.poison();
  engine.run(engine.plan(s.batch), s.tensors);
  return {s.o.bytes, s.lse.bytes};
}

/// Moves the cache of `s` into `to`, whose (page, slot, head, dim) lie at the given strides.
void move_cache(const Array& from, int64_t page_size, int64_t heads, Tensor& to, KvLayout layout) {
  const int64_t dim = from.t.shape[3];
  to.ndim = 4;
  to.dtype = from.t.dtype;
  const int token = layout == KvLayout::nhd ? 1 : 2, head = 3 - token;
  to.shape[0] = from.t.shape[0], to.shape[token] = page_size, to.shape[head] = heads, to.shape[3] = dim;
  for (int64_t p = 0; p < to.shape[0]; ++p) {
    for (int64_t t = 0; t < page_size; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t d = 0; d < dim; ++d) {
          store_from_float(to.data, to.dtype, p * to.stride[0] + t * to.stride[token] + h * to.stride[head] + d,
                           from.get(((p * page_size + t) * heads + h) * dim + d));
        }
      }
    }
  }
}

TEST(Layouts, HeadsBeforeTokensHasTheSameBits) {
  Step s = mixed_step();
  const auto plain = run(s);
  expect_right(s);
  const int64_t pages = s.k.t.shape[0], size = s.spec.page_size;
  Array k(DType::f32, {pages, 2, size, 64}), v(DType::f32, {pages, 2, size, 64});
  move_cache(s.k, size, 2, k.t, KvLayout::hnd);
  move_cache(s.v, size, 2, v.t, KvLayout::hnd);
  s.tensors.k = k, s.tensors.v = v, s.tensors.layout = KvLayout::hnd;
  EXPECT_EQ(run(s), plain);
}

TEST(Layouts, B60_KBesideVInOnePageHasTheSameBits) {
  Step s = mixed_step();
  const auto plain = run(s);
  const int64_t pages = s.k.t.shape[0], size = s.spec.page_size;
  Array both(DType::f32, {pages, size, 2, 128});
  both.fill(NAN);
  Tensor k = both, v = both;
  v.data = static_cast<float*>(v.data) + 64;
  move_cache(s.k, size, 2, k, KvLayout::nhd);
  move_cache(s.v, size, 2, v, KvLayout::nhd);
  s.tensors.k = k, s.tensors.v = v;
  EXPECT_EQ(run(s), plain);
}

TEST(Layouts, HalvesOfEveryPageAndPagesBackwards) {
  Step s = mixed_step();
  const auto plain = run(s);
  const int64_t pages = s.k.t.shape[0], size = s.spec.page_size, page = size * 2 * 64;
  Array both(DType::f32, {pages, 2 * size, 2, 64});
  both.fill(NAN);
  Tensor k = s.k, v = s.v;  // page p of K is the first half of the pool's page (pages - 1 - p)
  k.data = reinterpret_cast<float*>(both.bytes.data()) + (pages - 1) * 2 * page;
  v.data = static_cast<float*>(k.data) + page;
  k.stride[0] = v.stride[0] = -2 * page;
  move_cache(s.k, size, 2, k, KvLayout::nhd);
  move_cache(s.v, size, 2, v, KvLayout::nhd);
  s.tensors.k = k, s.tensors.v = v;
  EXPECT_EQ(run(s), plain);
}

TEST(Layouts, B66_DenseTablesOfAnyWidthAndIndexType) {
  Step s = mixed_step();
  const auto plain = run(s);
  for (const int64_t width : {9, 33, 295}) {
    std::vector<int32_t> table(s.requests.size() * size_t(width), 0x7fffffff);
    std::vector<int64_t> wide(table.size(), -1);
    for (size_t r = 0; r < s.requests.size(); ++r) {
      for (int64_t i = s.list_indptr[r]; i < s.list_indptr[r + 1]; ++i) {
        const size_t at = r * size_t(width) + size_t(i - s.list_indptr[r]);
        wide[at] = table[at] = s.pages[size_t(i)];
      }
    }
    for (const bool is_64 : {false, true}) {
      Step t = mixed_step();
      t.batch.list_indptr = {};
      t.batch.table_stride = width;
      t.batch.pages = is_64 ? IndexView(wide.data(), int64_t(wide.size())) : IndexView(table.data(), int64_t(table.size()));
      EXPECT_EQ(run(t), plain) << width;
    }
  }
}

TEST(Layouts, B56_EveryPageSizeHasTheSameBits) {
  Step reference = mixed_step();
  const auto plain = run(reference);
  for (const int32_t page_size : {1, 2, 3, 5, 17, 32, 64, 128, 256}) {
    Step s;
    s.spec = small_spec();
    s.spec.page_size = page_size;
    s.requests = reference.requests;
    s.make();  // the same seed gives the same keys in the same order
    EXPECT_EQ(run(s), plain) << page_size;
    if (page_size == 1) {  // a pool of slots has no page dimension
      Tensor &k = s.tensors.k, &v = s.tensors.v;
      for (Tensor* t : {&k, &v}) {
        for (int d = 1; d < 3; ++d) t->shape[d] = t->shape[d + 1], t->stride[d] = t->stride[d + 1];
        t->ndim = 3;
      }
      EXPECT_EQ(run(s), plain);
      s.tensors.layout = KvLayout::hnd;
      EXPECT_EQ(run(s), plain);
    }
  }
  Step ragged;
  ragged.spec = small_spec();
  ragged.spec.storage = Storage::ragged;
  ragged.requests = reference.requests;
  ragged.make();
  EXPECT_EQ(run(ragged), plain);
}

TEST(Layouts, B61_StridedQueryAndOutput) {
  Step s = mixed_step();
  const auto plain = run(s);
  const int64_t tokens = s.qo_indptr.back();
  // Q is the first columns of a fused QKV matrix.
  Array qkv(DType::f32, {tokens, 8, 64});
  qkv.fill(NAN);
  Tensor q = qkv;
  q.shape[1] = 4;
  for (int64_t t = 0; t < tokens; ++t) std::memcpy(static_cast<float*>(q.data) + t * 512, s.q.bytes.data() + t * 1024, 1024);
  s.tensors.q = q;
  // O is every second head of a larger tensor, LSE a transposed view.
  Array big(DType::f32, {tokens, 8, 64}), lse(DType::f32, {4, tokens});
  big.fill(-7.0f);
  Tensor o = big;
  o.shape[1] = 4, o.stride[1] = 128;
  s.tensors.o = o;
  s.tensors.lse = lse;
  std::swap(s.tensors.lse.shape[0], s.tensors.lse.shape[1]);
  std::swap(s.tensors.lse.stride[0], s.tensors.lse.stride[1]);
  run(s);
  expect_right(s);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < 8; ++h) {
      const char* row = big.bytes.data() + (t * 8 + h) * 256;
      if (h % 2 == 0) {
        ASSERT_EQ(std::memcmp(row, plain.first.data() + (t * 4 + h / 2) * 256, 256), 0);
        ASSERT_EQ(std::memcmp(lse.bytes.data() + (h / 2 * tokens + t) * 4, plain.second.data() + (t * 4 + h / 2) * 4, 4), 0);
      } else {
        for (int64_t d = 0; d < 64; ++d) ASSERT_EQ(big.get((t * 8 + h) * 64 + d), -7.0f);
      }
    }
  }
  // O in the same fused matrix as Q: columns of their own.
  o = qkv;
  o.shape[1] = 4;
  o.data = static_cast<float*>(o.data) + 256;
  s.tensors.o = o;
  run(s);
  expect_right(s);
}

TEST(Layouts, MlaValuesLieWithinKeys) {
  Step s;
  s.spec = small_spec();
  s.spec.num_qo_heads = 16;
  s.spec.num_kv_heads = 1;
  s.spec.head_dim_qk = 576;
  s.spec.head_dim_vo = 512;
  s.requests = {{1, 100}, {5, 0}, {3, 64}, {1, 1}};
  s.make();
  s.tensors.v = s.tensors.k;
  s.tensors.v.shape[3] = 512;
  run(s);
  expect_right(s);
}

TEST(Layouts, FreedPagesBeforeAWindowAreNeverLookedAt) {
  Step s;
  s.spec = small_spec();
  s.spec.variant.range.left = 40;
  s.requests = {{1, 300}, {4, 200}};
  s.make();
  const auto whole = run(s);
  expect_right(s);
  for (size_t r = 0; r < s.requests.size(); ++r) {  // the first position that a row keeps
    const int32_t first = s.requests[r].kv_len - s.requests[r].q_len - 40;
    for (int64_t i = 0; i < first / s.spec.page_size; ++i) s.pages[size_t(s.list_indptr[r] + i)] = i % 2 ? -1 : 0x7fffffff;
  }
  EXPECT_EQ(run(s), whole);
  // ... but the page that a row does keep is.
  s.pages[size_t(s.list_indptr[0] + (300 - 1 - 40) / s.spec.page_size)] = -1;
  EXPECT_THROW(run(s), Error);
}

TEST(Layouts, AListForEveryKvHead) {
  // Head 0 of request 0 attends to pages 0 and 2 of its three, head 1 to page 1: positions from page_pos, as a Quest cache has them.
  Step s;
  s.spec = small_spec();
  s.requests = {{1, 48}};
  s.make();
  const std::vector<int32_t> kv_len{32, 16}, pages{s.pages[0], s.pages[2], s.pages[1]}, page_pos{0, 32, 16}, q_pos0{47};
  const std::vector<int64_t> indptr{0, 2, 3};
  s.batch.lists_per_kv_head = true;
  s.batch.kv_len = IndexView(kv_len.data(), 2);
  s.batch.list_indptr = IndexView(indptr.data(), 3);
  s.batch.pages = IndexView(pages.data(), 3);
  s.batch.kv_position = KvPosition::page_table;
  s.batch.q_pos0 = q_pos0.data();
  s.tensors.page_pos = page_pos.data();
  run(s);
  expect_right(s);
}

TEST(Layouts, PageIdsGivenToRunMayLieElsewhere) {
  Step s = mixed_step();
  const auto plain = run(s);
  const std::vector<int64_t> copy(s.pages.begin(), s.pages.end());
  s.tensors.pages = IndexView(copy.data(), int64_t(copy.size()));
  EXPECT_EQ(run(s), plain);
}

}  // namespace
}  // namespace kvloom::test
