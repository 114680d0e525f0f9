// SPARSE: block-sparse inputs.
#include "tests/bugs/bug_case.h"

#include "cli/check/random.h"
#include "kvloom/api/ops.h"
#include "tests/support/one_request.h"
#include "tests/support/short_lists.h"

#include <cmath>

namespace kvloom::bugs {
namespace {

using check::Stream;
using check::stream_value;

/// Runs a block-sparse batch over plain [columns, heads, dim] tensors and compares with the same matrix written out as a custom mask.
void expect_map(Span<const int32_t> rows, Span<const int32_t> cols, const std::vector<uint8_t>& map) {
  BsrBatch bsr = variable_bsr_batch(rows, cols, map.data());
  int32_t q_len = 0, kv_len = 0;
  for (const int32_t n : rows) q_len += n;
  for (const int32_t n : cols) kv_len += n;
  const int32_t dim = 128;
  std::vector<float> q(size_t(q_len * dim)), k(size_t(kv_len * dim)), v(k.size()), o(q.size(), 9.0f), lse(size_t(q_len), 9.0f);
  for (size_t i = 0; i < q.size(); ++i) q[i] = stream_value(35, Stream::q, i);
  for (size_t i = 0; i < k.size(); ++i) k[i] = stream_value(35, Stream::k, i), v[i] = stream_value(35, Stream::v, i);
  AttentionSpec spec;
  spec.num_qo_heads = spec.num_kv_heads = 1;
  spec.head_dim_qk = spec.head_dim_vo = dim;
  spec.page_size = bsr.page_size;
  RunTensors t;
  t.q = Tensor::dense(q.data(), DType::f32, {q_len, 1, dim});
  t.k = Tensor::dense(k.data(), DType::f32, {kv_len / bsr.page_size, bsr.page_size, 1, dim});
  t.v = Tensor::dense(v.data(), DType::f32, {kv_len / bsr.page_size, bsr.page_size, 1, dim});
  t.o = Tensor::dense(o.data(), DType::f32, {q_len, 1, dim});
  t.lse = Tensor::dense(lse.data(), DType::f32, {q_len, 1});
  Engine engine(spec, {bsr.batch.num_requests, q_len, bsr.kv_tokens, 0, 0}, with_policy(Policy::stream));
  engine.run(engine.plan(bsr.batch), t);

  std::vector<uint8_t> mask(size_t(q_len * kv_len), 0), bits;
  int32_t r0 = 0;
  for (int64_t i = 0; i < rows.size; r0 += rows[i++]) {
    int32_t c0 = 0;
    for (int64_t j = 0; j < cols.size; c0 += cols[j++]) {
      for (int32_t r = r0; r < r0 + rows[i]; ++r) {
        for (int32_t c = c0; c < c0 + cols[j]; ++c) mask[size_t(r * kv_len + c)] = map[size_t(i * cols.size + j)];
      }
    }
  }
  const int64_t mask_indptr[] = {0, pack_mask(mask.data(), q_len, kv_len, bits)};
  AttentionSpec masked = spec;
  masked.storage = Storage::ragged;
  masked.variant.custom_mask = true;
  const test::OneRequest one_request(q_len, kv_len);
  const Batch& batch = one_request.batch;
  AttendParams params;
  params.q = q.data();
  params.q_token = params.q_head = dim;
  params.kv = {k.data(), v.data(), dim, dim, dim, dim, dim, dim, kv_len};
  params.variant.mask = bits.data();
  params.variant.mask_indptr = mask_indptr;
  std::vector<ref::Row> all;
  for (int32_t i = 0; i < q_len; ++i) all.push_back({i, 0});
  std::vector<double> ref_o(o.size()), ref_lse(lse.size());
  ref::attend_rows(masked, batch, params, {all.data(), q_len}, ref_o.data(), ref_lse.data());
  Case c;
  c.spec = spec;
  c.q_len = {q_len};
  c.kv_len = {kv_len};
  EXPECT_EQ(check::compare(c, o, lse, ref_o, ref_lse).fault, "");
}

TEST(Sparse, B35_BlocksOfVariableSize) {
  const std::vector<int32_t> rows{1, 2, 3}, cols{3, 1, 2};
  const Span<const int32_t> r{rows.data(), 3}, c{cols.data(), 3};
  expect_map(r, c, {0, 0, 1, 1, 0, 1, 0, 1, 1});
  expect_map(r, c, {0, 0, 1, 0, 0, 0, 0, 1, 1});  // a block row without blocks
  expect_map(r, c, {0, 0, 0, 0, 0, 0, 0, 0, 0});
}

TEST(Sparse, B36_ManyHeadsTimesManyBlockRows) {
  // 48 KV heads x 768 block rows = 36864 lists, a page of 8 tokens each.
  const int32_t heads = 48, rows = 768, dim = 16, ps = 8, num_pages = 40;
  Case c;
  c.spec.num_qo_heads = c.spec.num_kv_heads = heads;
  c.spec.head_dim_qk = c.spec.head_dim_vo = dim;
  c.spec.page_size = ps;
  const test::ShortLists lists(rows, heads, [](size_t l) { return int32_t(mix64(l) % num_pages); });
  std::vector<float> q(size_t(rows * heads * dim)), kv(size_t(num_pages * ps * heads * dim)), o(q.size());
  for (size_t i = 0; i < q.size(); ++i) q[i] = stream_value(36, Stream::q, i);
  for (size_t i = 0; i < kv.size(); ++i) kv[i] = stream_value(36, Stream::k, i);
  const Batch batch = lists.batch();
  RunTensors t;
  t.q = Tensor::dense(q.data(), DType::f32, {rows, heads, dim});
  t.k = Tensor::dense(kv.data(), DType::f32, {num_pages, ps, heads, dim});
  t.v = t.k;
  t.o = Tensor::dense(o.data(), DType::f32, {rows, heads, dim});
  t.pages = batch.pages;
  Engine engine(c.spec, {rows, rows, rows * 9, 0, 0}, with_policy(Policy::automatic, 64));
  engine.run(engine.plan(batch), t);
  AttendParams params;
  params.q = q.data();
  params.q_token = heads * dim;
  params.q_head = dim;
  params.kv = {kv.data(), kv.data(), ps * heads * dim, heads * dim, dim, ps * heads * dim, heads * dim, dim, num_pages};
  for (int32_t i = 0; i < 500; ++i) {
    const int32_t token = int32_t(mix64(uint64_t(i)) % rows), head = int32_t(mix64(uint64_t(i) + 1000) % heads);
    const ref::Row row{token, head};
    std::vector<double> want(dim, 0.0);
    double lse = 0.0;
    ref::attend_rows(c.spec, batch, params, {&row, 1}, want.data(), &lse);
    for (int32_t d = 0; d < dim; ++d) ASSERT_NEAR(o[size_t((token * heads + head) * dim + d)], want[size_t(d)], 2e-6);
  }
}

TEST(Sparse, B37_PaddedBlockIdsAreNotBlocks) {
  const Watchdog watchdog(120);
  expect_right("B37");  // padded with 0x7fffffff
  // Padded with 0, which is a block of its own: its tokens are NaN here, for no row keeps them.
  CaseData data(bug_case("B37.empty_rows"));
  std::vector<double> o, lse;
  data.reference(o, lse);
  std::vector<int32_t> padded;
  for (int64_t e = 0; e < data.batch().pages.size; ++e) {
    const int64_t page = data.batch().pages[e];
    padded.push_back(page == check::kNoPage ? 0 : int32_t(page));
  }
  Batch batch = data.batch();
  batch.pages = IndexView(padded.data(), int64_t(padded.size()));
  RunTensors tensors = data.tensors();
  tensors.pages = batch.pages;
  Engine engine(data.what().spec, data.capacity(), with_policy(Policy::stream));
  data.poison_outputs();
  engine.run(engine.plan(batch), tensors);
  EXPECT_EQ(check::compare(data.what(), data.read_o(), data.read_lse(), o, lse).fault, "");
}

}  // namespace
}  // namespace kvloom::bugs
