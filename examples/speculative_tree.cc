// Speculative decoding with a tree of drafts: six draft tokens hang off one context, branches apart. One call attends all of them: each
// token sees the context and its own ancestors (a bit mask), at the position that it would have in the text (q_pos). Checked against
// decoding each branch by itself.
//
//   context ... c   +-- 0 -- 2 -- 4        token:    0  1  2  3  4  5
//                   +-- 1 -- 3             parent:   -  -  0  1  2  2
//                       (2 -- 5)           depth:    1  1  2  2  3  3
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

constexpr int32_t kHeads = 4, kKvHeads = 2, kDim = 32, kContext = 100, kDrafts = 6, kKeys = kContext + kDrafts;
constexpr int32_t kParent[kDrafts] = {-1, -1, 0, 1, 2, 2};

std::vector<float> random_floats(size_t n) {
  static std::mt19937 random(1);
  static std::normal_distribution<float> x;
  std::vector<float> v(n);
  for (float& f : v) f = x(random);
  return v;
}

/// The token and its ancestors, root first.
std::vector<int32_t> path_to(int32_t token) {
  std::vector<int32_t> path;
  for (; token >= 0; token = kParent[token]) path.insert(path.begin(), token);
  return path;
}

kvloom::Batch one_request(const std::vector<int32_t>& qo_indptr, const std::vector<int32_t>& kv_len, const std::vector<int32_t>& start) {
  kvloom::Batch b;
  b.num_requests = 1;
  b.qo_indptr = IndexView(qo_indptr.data(), 2);
  b.kv_len = IndexView(kv_len.data(), 1);
  b.list_indptr = IndexView(start.data(), 1);
  return b;
}

}  // namespace

int main() {
  const std::vector<float> q = random_floats(kDrafts * kHeads * kDim), k = random_floats(kKeys * kKvHeads * kDim),
                           v = random_floats(kKeys * kKvHeads * kDim);
  std::vector<float> tree(q.size());
  std::vector<uint8_t> mask, bits;
  std::vector<int32_t> q_pos;
  for (int32_t i = 0; i < kDrafts; ++i) {
    std::vector<uint8_t> row(kKeys, 0);
    std::fill(row.begin(), row.begin() + kContext, 1);
    for (const int32_t ancestor : path_to(i)) row[size_t(kContext + ancestor)] = 1;
    mask.insert(mask.end(), row.begin(), row.end());
    q_pos.push_back(kContext + int32_t(path_to(i).size()) - 1);
  }
  const std::vector<int64_t> mask_indptr{0, kvloom::pack_mask(mask.data(), kDrafts, kKeys, bits)};
  const std::vector<int32_t> qo_indptr{0, kDrafts}, kv_len{kKeys}, start{0};

  kvloom::AttentionSpec spec;
  spec.num_qo_heads = kHeads;
  spec.num_kv_heads = kKvHeads;
  spec.head_dim_qk = spec.head_dim_vo = kDim;
  spec.storage = kvloom::Storage::ragged;
  spec.variant.custom_mask = true;
  kvloom::Batch batch = one_request(qo_indptr, kv_len, start);
  batch.q_pos = q_pos.data();  // what ALiBi, windows and RoPE would go by
  kvloom::RunTensors t;
  t.q = Tensor::dense(q.data(), DType::f32, {kDrafts, kHeads, kDim});
  t.k = Tensor::dense(k.data(), DType::f32, {kKeys, kKvHeads, kDim});
  t.v = Tensor::dense(v.data(), DType::f32, {kKeys, kKvHeads, kDim});
  t.o = Tensor::dense(tree.data(), DType::f32, {kDrafts, kHeads, kDim});
  t.mask = bits.data();
  t.mask_indptr = mask_indptr.data();
  kvloom::attention(spec, batch, t);

  // Each token by itself: its branch laid out as plain text, its query last.
  float worst = 0.0f;
  kvloom::AttentionSpec plain = spec;
  plain.variant.custom_mask = false;
  for (int32_t i = 0; i < kDrafts; ++i) {
    const size_t row = size_t(kKvHeads * kDim), context = size_t(kContext) * row;
    std::vector<float> branch_k(k.begin(), k.begin() + int64_t(context)), branch_v(v.begin(), v.begin() + int64_t(context)),
        o(kHeads * kDim);
    for (const int32_t token : path_to(i)) {
      const auto first = int64_t(context + size_t(token) * row);
      branch_k.insert(branch_k.end(), k.begin() + first, k.begin() + first + int64_t(row));
      branch_v.insert(branch_v.end(), v.begin() + first, v.begin() + first + int64_t(row));
    }
    const std::vector<int32_t> one{0, 1}, length{int32_t(branch_k.size() / row)};
    kvloom::RunTensors alone;
    alone.q = Tensor::dense(q.data() + i * kHeads * kDim, DType::f32, {1, kHeads, kDim});
    alone.k = Tensor::dense(branch_k.data(), DType::f32, {length[0], kKvHeads, kDim});
    alone.v = Tensor::dense(branch_v.data(), DType::f32, {length[0], kKvHeads, kDim});
    alone.o = Tensor::dense(o.data(), DType::f32, {1, kHeads, kDim});
    kvloom::attention(plain, one_request(one, length, start), alone);
    for (size_t d = 0; d < o.size(); ++d) worst = std::max(worst, std::fabs(o[d] - tree[size_t(i * kHeads * kDim) + d]));
  }
  std::printf("%d drafts in one call; largest difference from decoding branch by branch %.2g\n", kDrafts, worst);
  return worst < 1e-5f ? 0 : 1;
}
