// Block-sparse matrices on a GPU: batches are made and planned from host arrays, page ids go to the device, and the answer is that of the
// same matrix written out as a mask.
#include "kvloom/api/ops.h"
#include "kvloom/base/math.h"
#include "kvloom/ref/ref.h"
#include "tests/cuda/engine_fixture.h"
#include "tests/support/one_request.h"
#include "tests/support/short_lists.h"


namespace kvloom::test {
namespace {

using GpuSparse = GpuEngine;

template <class T>
Span<const T> span(const std::vector<T>& x) {
  return {x.data(), int64_t(x.size())};
}

AttentionSpec sparse_spec(int32_t page_size, int32_t heads = 2) {
  AttentionSpec s = gpu_spec();
  s.num_qo_heads = s.num_kv_heads = heads;
  s.head_dim_qk = s.head_dim_vo = 96;  // a key of this test's own
  s.variant.range.causal = false;
  s.page_size = page_size;
  return s;
}

/// Runs `bsr` over random [tokens, heads, dim] tensors on the device and compares every row with REF over `keep`, [heads or
/// 1][rows][columns].
void expect_matrix(FakeGpu& gpu, const BsrBatch& bsr, int64_t rows, int64_t columns, const std::vector<uint8_t>& keep, bool per_head,
                   const std::string& what) {
  const AttentionSpec spec = sparse_spec(bsr.page_size);
  const int64_t heads = spec.num_kv_heads, dim = spec.head_dim_qk;
  gpu.add_kernel(spec);
  gpu.set_spec(&spec);
  Array q(DType::bf16, {rows, heads, dim}), k(DType::bf16, {columns, heads, dim}), v(DType::bf16, {columns, heads, dim});
  q.normal(1), k.normal(2), v.normal(3);
  Array o(DType::bf16, {rows, heads, dim}), lse(DType::f32, {rows, heads});
  const GpuBuffer q_there = put(q.bytes), k_there = put(k.bytes), v_there = put(v.bytes), pages = put(bsr.pages);
  GpuBuffer o_there(0, int64_t(o.bytes.size())), lse_there(0, int64_t(lse.bytes.size()));
  o_there.fill(0xff), lse_there.fill(0xff);
  Engine engine(spec, {bsr.batch.num_requests, rows, bsr.kv_tokens, 0, 0}, cuda_options());
  RunTensors t;
  const int64_t ps = bsr.page_size;
  t.q = Tensor::dense(q_there.data(), DType::bf16, {rows, heads, dim});
  t.k = Tensor::dense(k_there.data(), DType::bf16, {columns / ps, ps, heads, dim});
  t.v = Tensor::dense(v_there.data(), DType::bf16, {columns / ps, ps, heads, dim});
  t.o = Tensor::dense(o_there.data(), DType::bf16, {rows, heads, dim});
  t.lse = Tensor::dense(lse_there.data(), DType::f32, {rows, heads});
  t.pages = IndexView(pages.as<int32_t>(), int64_t(bsr.pages.size()));
  const Plan plan = engine.plan(bsr.batch);
  engine.run(plan, t);
  gpu_synchronize(0);
  gpu.set_spec(nullptr);
  o_there.download(o.bytes.data(), o_there.size());
  lse_there.download(lse.bytes.data(), lse_there.size());

  double square = 0.0, norm = 0.0;
  for (int64_t h = 0; h < heads; ++h) {  // a ragged request with a mask, one head at a time
    std::vector<uint8_t> bits;
    const int64_t mask_indptr[] = {0, pack_mask(keep.data() + (per_head ? h * rows * columns : 0), rows, columns, bits)};
    AttentionSpec one = spec;
    one.num_qo_heads = one.num_kv_heads = 1;
    one.storage = Storage::ragged;
    one.variant.custom_mask = true;
    const OneRequest one_request(rows, columns);
    const Batch& batch = one_request.batch;
    AttendParams p;
    p.q = q.bytes.data() + h * dim * 2;
    p.q_token = heads * dim;
    p.kv.k = k.bytes.data() + h * dim * 2;
    p.kv.v = v.bytes.data() + h * dim * 2;
    p.kv.k_page = p.kv.k_token = p.kv.v_page = p.kv.v_token = heads * dim;
    p.variant.mask = bits.data();
    p.variant.mask_indptr = mask_indptr;
    p.variant.mask_kv_len = one_request.kv_len;
    std::vector<ref::Row> all;
    for (int32_t r = 0; r < rows; ++r) all.push_back({r, 0});
    std::vector<double> want(size_t(rows * dim)), want_lse(static_cast<size_t>(rows));
    ref::attend_rows(one, batch, p, {all.data(), rows}, want.data(), want_lse.data());
    for (int64_t r = 0; r < rows; ++r) {
      const double got_lse = at(lse, r, h);
      if (std::isinf(want_lse[size_t(r)])) {
        ASSERT_EQ(got_lse, want_lse[size_t(r)]) << what << ", row " << r;
      } else {
        ASSERT_NEAR(got_lse, want_lse[size_t(r)], 4e-6 * (1.0 + std::fabs(want_lse[size_t(r)]))) << what << ", row " << r;
      }
      for (int64_t d = 0; d < dim; ++d) {
        const double w = want[size_t(r * dim + d)], g = at(o, r, h, d);
        ASSERT_FALSE(std::isnan(g)) << what << ", row " << r;
        if (std::isinf(want_lse[size_t(r)])) {
          ASSERT_EQ(g, 0.0) << what << ", row " << r;
        }
        square += (g - w) * (g - w);
        norm += w * w;
      }
    }
  }
  EXPECT_LE(std::sqrt(square), 2.6e-3 * std::sqrt(norm) + 1e-12) << what;
}

std::vector<uint8_t> written_out(const std::vector<int32_t>& rows, const std::vector<int32_t>& cols, const uint8_t* map) {
  std::vector<uint8_t> keep;
  for (size_t i = 0; i < rows.size(); ++i) {
    std::vector<uint8_t> line;
    for (size_t j = 0; j < cols.size(); ++j) line.insert(line.end(), size_t(cols[j]), uint8_t(map[i * cols.size() + j] != 0));
    for (int32_t r = 0; r < rows[i]; ++r) keep.insert(keep.end(), line.begin(), line.end());
  }
  return keep;
}

TEST_F(GpuSparse, B35_BlocksOfAnySize) {
  const std::vector<int32_t> rows{1, 2, 3}, cols{3, 1, 2};
  const std::vector<std::vector<uint8_t>> maps = {{0, 0, 1, 1, 0, 1, 0, 1, 1}, {1, 1, 1, 0, 0, 0, 1, 0, 0}, {0, 0, 0, 0, 0, 0, 0, 0, 0}};
  for (const std::vector<uint8_t>& map : maps) {
    expect_matrix(gpu, variable_bsr_batch(span(rows), span(cols), map.data()), 6, 6, written_out(rows, cols, map.data()), false, "6 x 6");
  }
}

TEST_F(GpuSparse, B37_ManyBlocks) {
  std::mt19937 random(5);
  const std::vector<int32_t> rows{64, 0, 17, 128, 1, 90}, cols{32, 64, 0, 96, 128, 32, 48};
  std::vector<uint8_t> map(rows.size() * cols.size());
  for (uint8_t& x : map) x = random() % 3 == 0;
  expect_matrix(gpu, variable_bsr_batch(span(rows), span(cols), map.data()), 300, 400, written_out(rows, cols, map.data()), false, "any");
}

TEST_F(GpuSparse, BlocksOfOneSize) {
  const int32_t kRows = 7, kCols = 9, kBlockRows = 12, kBlockCols = 16;
  std::mt19937 random(6);
  std::vector<int32_t> indptr{0}, indices;
  std::vector<uint8_t> map(kRows * kCols, 0);
  for (int32_t i = 0; i < kRows; ++i) {
    for (int32_t j = kCols - 1; j >= 0; --j) {  // in any order
      if (random() % 2 == 0 || i == 3) continue;
      indices.push_back(j);
      map[size_t(i * kCols + j)] = 1;
    }
    indptr.push_back(int32_t(indices.size()));
  }
  const BsrBatch bsr = bsr_batch(kRows, kBlockRows, kBlockCols, kCols, IndexView(indptr.data(), kRows + 1),
                                 IndexView(indices.data(), int64_t(indices.size())));
  expect_matrix(gpu, bsr, kRows * kBlockRows, kCols * kBlockCols,
                written_out(std::vector<int32_t>(kRows, kBlockRows), std::vector<int32_t>(kCols, kBlockCols), map.data()), false, "bsr");
}

TEST_F(GpuSparse, AMatrixAHead) {
  const std::vector<int32_t> rows{10, 30, 24, 20, 20, 24}, cols{16, 48, 32, 32, 32, 32};  // two heads of three
  const std::vector<uint8_t> map = {1, 0, 1, 0, 1, 1, 0, 0, 0, 0, 1, 0, 1, 1, 1, 1, 0, 0};
  std::vector<uint8_t> keep = written_out({10, 30, 24}, {16, 48, 32}, map.data());
  const std::vector<uint8_t> second = written_out({20, 20, 24}, {32, 32, 32}, map.data() + 9);
  keep.insert(keep.end(), second.begin(), second.end());
  expect_matrix(gpu, variable_bsr_batch(span(rows), span(cols), map.data(), 2), 64, 96, keep, true, "a matrix a head");
}

// 48 KV heads x 768 block rows = 36864 lists, more than a table of 32768 has.
TEST_F(GpuSparse, B36_ManyHeadsTimesManyBlockRows) {
  const int32_t heads = 48, rows = 768, ps = 8, num_pages = 40;
  AttentionSpec spec = gpu_spec(), kernel = gpu_spec();
  kernel.variant.range.causal = spec.variant.range.causal = false;
  spec.num_qo_heads = spec.num_kv_heads = heads;
  spec.page_size = ps;
  const int64_t dim = spec.head_dim_qk;
  gpu.add_kernel(kernel);
  gpu.set_spec(&spec);
  std::mt19937 random(36);
  const ShortLists lists(rows, heads, [&](size_t) { return int32_t(random() % num_pages); });
  Array q(DType::bf16, {rows, heads, dim}), k(DType::bf16, {num_pages, ps, heads, dim}), v(DType::bf16, {num_pages, ps, heads, dim}), o(DType::bf16, {rows, heads, dim}),
      lse(DType::f32, {rows, heads});
  q.normal(1), k.normal(2), v.normal(3);
  const Batch batch = lists.batch();
  const GpuBuffer q_there = put(q.bytes), k_there = put(k.bytes), v_there = put(v.bytes), pages_there = put(lists.pages);
  GpuBuffer o_there(0, int64_t(o.bytes.size())), lse_there(0, int64_t(lse.bytes.size()));
  RunTensors t;
  t.q = Tensor::dense(q_there.data(), DType::bf16, {rows, heads, dim});
  t.k = Tensor::dense(k_there.data(), DType::bf16, {num_pages, ps, heads, dim});
  t.v = Tensor::dense(v_there.data(), DType::bf16, {num_pages, ps, heads, dim});
  t.o = Tensor::dense(o_there.data(), DType::bf16, {rows, heads, dim});
  t.lse = Tensor::dense(lse_there.data(), DType::f32, {rows, heads});
  t.pages = IndexView(pages_there.as<int32_t>(), int64_t(lists.pages.size()));
  AttendParams params;
  params.q = q.bytes.data();
  params.q_token = heads * dim;
  params.q_head = dim;
  params.kv = {k.bytes.data(), v.bytes.data(), ps * heads * dim, heads * dim, dim, ps * heads * dim, heads * dim, dim, num_pages};
  params.pages = batch.pages;
  for (const char* family : {"sm80", "sm90"}) {
    if (family == std::string("sm90") && !gpu.is_fake() && gpus()[0].arch != "sm_90a") continue;
    EngineOptions options = cuda_options();
    options.kernel = family;
    Engine engine(spec, {rows, rows, rows * 9, 0, 0}, options);
    o_there.fill(0xff), lse_there.fill(0xff);
    const Plan plan = engine.plan(batch);
    EXPECT_GE(plan.view().items.size, heads * rows - int64_t(lists.kv_len.size()) / 9);  // lists with keys; those without may be written together
    engine.run(plan, t);
    gpu_synchronize(0);
    o_there.download(o.bytes.data(), o_there.size());
    lse_there.download(lse.bytes.data(), lse_there.size());
    for (int64_t i = 0; i < lse.count(); ++i) {  // of every list; a NaN is what nobody wrote
      if (lists.kv_len[size_t(i)] == 0) {
        ASSERT_EQ(lse.get(i), neg_inf()) << family << ", list " << i;
      } else {
        ASSERT_TRUE(std::isfinite(lse.get(i))) << family << ", list " << i;
      }
    }
    for (int32_t i = 0; i < 500; ++i) {
      const ref::Row row{int32_t(random() % rows), int32_t(random() % heads)};
      std::vector<double> want(size_t(dim), 0.0);
      double want_lse = 0.0, square = 0.0, norm = 0.0;
      ref::attend_rows(spec, batch, params, {&row, 1}, want.data(), &want_lse);
      if (std::isinf(want_lse)) continue;
      ASSERT_NEAR(at(lse, row.token, row.q_head), want_lse, 4e-6 * (1.0 + std::fabs(want_lse))) << family << ", row " << row.token << ", head " << row.q_head;
      for (int64_t d = 0; d < dim; ++d) {
        const double g = at(o, row.token, row.q_head, d);
        square += (g - want[size_t(d)]) * (g - want[size_t(d)]);
        norm += want[size_t(d)] * want[size_t(d)];
      }
      ASSERT_LE(std::sqrt(square), 4e-3 * std::sqrt(norm)) << family << ", row " << row.token << ", head " << row.q_head;
    }
  }
  gpu.set_spec(nullptr);
}

}  // namespace
}  // namespace kvloom::test
