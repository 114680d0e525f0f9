// Attention over a block-sparse matrix: each block row of queries attends to the block columns that a map lists, blocks of any size. The
// same matrix as a bit mask over every key gives the same answer, and reads all of them.
#include "kvloom/api/engine.h"
#include "kvloom/api/ops.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

namespace {

using kvloom::DType;
using kvloom::IndexView;
using kvloom::Tensor;

constexpr int32_t kHeads = 4, kDim = 32;

std::vector<float> random_floats(size_t n) {
  static std::mt19937 random(1);
  static std::normal_distribution<float> x;
  std::vector<float> v(n);
  for (float& f : v) f = x(random);
  return v;
}

}  // namespace

int main() {
  const std::vector<int32_t> block_rows{16, 32, 16}, block_cols{64, 32, 96, 64};  // 64 queries, 256 keys
  const std::vector<uint8_t> map{1, 0, 0, 0, 1, 0, 1, 0, 0, 1, 0, 1};
  constexpr int64_t kRows = 64, kCols = 256;
  const std::vector<float> q = random_floats(kRows * kHeads * kDim), k = random_floats(kCols * kHeads * kDim),
                           v = random_floats(kCols * kHeads * kDim);
  std::vector<float> sparse(q.size()), masked(q.size());

  kvloom::AttentionSpec spec;
  spec.num_qo_heads = spec.num_kv_heads = kHeads;
  spec.head_dim_qk = spec.head_dim_vo = kDim;
  const kvloom::BsrBatch bsr = kvloom::variable_bsr_batch({block_rows.data(), 3}, {block_cols.data(), 4}, map.data());
  spec.page_size = bsr.page_size;
  kvloom::RunTensors t;
  t.q = Tensor::dense(q.data(), DType::f32, {kRows, kHeads, kDim});
  t.k = Tensor::dense(k.data(), DType::f32, {kCols / bsr.page_size, bsr.page_size, kHeads, kDim});
  t.v = Tensor::dense(v.data(), DType::f32, {kCols / bsr.page_size, bsr.page_size, kHeads, kDim});
  t.o = Tensor::dense(sparse.data(), DType::f32, {kRows, kHeads, kDim});
  kvloom::attention(spec, bsr.batch, t);

  // The same as one request over all keys, with a mask.
  std::vector<uint8_t> dense, bits;
  for (size_t i = 0; i < block_rows.size(); ++i) {
    for (int32_t r = 0; r < block_rows[i]; ++r) {
      for (size_t j = 0; j < block_cols.size(); ++j) dense.insert(dense.end(), size_t(block_cols[j]), map[i * block_cols.size() + j]);
    }
  }
  const std::vector<int64_t> mask_indptr{0, kvloom::pack_mask(dense.data(), kRows, kCols, bits)};
  const std::vector<int32_t> qo_indptr{0, kRows}, kv_len{kCols}, start{0};
  kvloom::Batch whole;
  whole.num_requests = 1;
  whole.qo_indptr = IndexView(qo_indptr.data(), 2);
  whole.kv_len = IndexView(kv_len.data(), 1);
  whole.list_indptr = IndexView(start.data(), 1);
  spec.storage = kvloom::Storage::ragged;
  spec.variant.custom_mask = true;
  t.k = Tensor::dense(k.data(), DType::f32, {kCols, kHeads, kDim});
  t.v = Tensor::dense(v.data(), DType::f32, {kCols, kHeads, kDim});
  t.o = Tensor::dense(masked.data(), DType::f32, {kRows, kHeads, kDim});
  t.mask = bits.data();
  t.mask_indptr = mask_indptr.data();
  kvloom::attention(spec, whole, t);

  float worst = 0.0f;
  for (size_t i = 0; i < q.size(); ++i) worst = std::max(worst, std::fabs(sparse[i] - masked[i]));
  const int64_t present = std::count(dense.begin(), dense.end(), 1);
  std::printf("page size %d, %d block rows, %.0f %% of the matrix present\nlargest difference from the masked form %.2g\n", bsr.page_size,
              bsr.batch.num_requests, 100.0 * double(present) / double(kRows * kCols), worst);
  return worst < 1e-5f ? 0 : 1;
}
