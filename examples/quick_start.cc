// Serving in one page: two prompts are prefilled, then both requests decode token by token, on a paged KV cache. One engine, one plan a
// step, one run a layer.
#include "kvloom/api/engine.h"
#include "kvloom/api/ops.h"

#include <cstdio>
#include <random>
#include <vector>

namespace {

using kvloom::DType;
using kvloom::IndexView;
using kvloom::Tensor;

constexpr int32_t kQueryHeads = 8, kKvHeads = 2, kDim = 64, kPageSize = 16, kPages = 32;

/// A pool of pages, and which of them each request has: a dense block table.
struct Cache {
  static constexpr int32_t kTableWidth = 8;
  std::vector<float> k = std::vector<float>(size_t(kPages * kPageSize * kKvHeads * kDim)), v = k;
  std::vector<int32_t> table = std::vector<int32_t>(2 * kTableWidth, 0);
  std::vector<int32_t> kv_len = {0, 0};
  int32_t free_page = 0;

  Tensor keys() { return Tensor::dense(k.data(), DType::f32, {kPages, kPageSize, kKvHeads, kDim}); }
  Tensor values() { return Tensor::dense(v.data(), DType::f32, {kPages, kPageSize, kKvHeads, kDim}); }
  IndexView pages() const { return IndexView(table.data(), int64_t(table.size())); }

  /// Makes room for `tokens` more of request r.
  void grow(int32_t r, int32_t tokens) {
    for (int32_t have = (kv_len[size_t(r)] + kPageSize - 1) / kPageSize; have * kPageSize < kv_len[size_t(r)] + tokens; ++have) {
      table[size_t(r * kTableWidth + have)] = free_page++;
    }
    kv_len[size_t(r)] += tokens;
  }
};

/// Stands for a model: projections of new tokens.
std::vector<float> random_floats(int64_t n) {
  static std::mt19937 random(7);
  static std::normal_distribution<float> x;
  std::vector<float> v(static_cast<size_t>(n));
  for (float& f : v) f = x(random);
  return v;
}

/// One step: q_len[r] new tokens of each request.
void step(kvloom::Engine& engine, Cache& cache, const std::vector<int32_t>& q_len) {
  // The new tokens' keys and values go into their pages first.
  std::vector<int32_t> qo_indptr{0}, request, pos;
  for (int32_t r = 0; r < 2; ++r) {
    for (int32_t i = 0; i < q_len[size_t(r)]; ++i) request.push_back(r), pos.push_back(cache.kv_len[size_t(r)] + i);
    cache.grow(r, q_len[size_t(r)]);
    qo_indptr.push_back(int32_t(pos.size()));
  }
  const auto tokens = int64_t(pos.size());
  const std::vector<float> k_new = random_floats(tokens * kKvHeads * kDim), v_new = random_floats(tokens * kKvHeads * kDim);
  kvloom::AppendBatch append;
  append.num_tokens = tokens;
  append.request = request.data();
  append.pos = pos.data();
  append.num_requests = 2;
  append.pages = cache.pages();
  append.table_stride = Cache::kTableWidth;
  kvloom::append_kv(Tensor::dense(k_new.data(), DType::f32, {tokens, kKvHeads, kDim}),
                    Tensor::dense(v_new.data(), DType::f32, {tokens, kKvHeads, kDim}), append, cache.keys(), cache.values(),
                    kvloom::KvLayout::nhd, kPageSize);

  // Plan once a step; the plan serves every layer.
  kvloom::Batch batch;
  batch.num_requests = 2;
  batch.qo_indptr = IndexView(qo_indptr.data(), 3);
  batch.kv_len = IndexView(cache.kv_len.data(), 2);
  batch.pages = cache.pages();
  batch.table_stride = Cache::kTableWidth;
  const kvloom::Plan plan = engine.plan(batch);

  const std::vector<float> q = random_floats(tokens * kQueryHeads * kDim);
  std::vector<float> o(q.size()), lse(size_t(tokens * kQueryHeads));
  kvloom::RunTensors t;
  t.q = Tensor::dense(q.data(), DType::f32, {tokens, kQueryHeads, kDim});
  t.k = cache.keys();
  t.v = cache.values();
  t.o = Tensor::dense(o.data(), DType::f32, {tokens, kQueryHeads, kDim});
  t.lse = Tensor::dense(lse.data(), DType::f32, {tokens, kQueryHeads});
  engine.run(plan, t);
  std::printf("  %3d new tokens over %3d + %3d keys   o[0] = %+.4f  lse[0] = %+.4f\n", int(tokens), cache.kv_len[0], cache.kv_len[1], o[0],
              lse[0]);
}

}  // namespace

int main() {
  kvloom::AttentionSpec spec;
  spec.num_qo_heads = kQueryHeads;
  spec.num_kv_heads = kKvHeads;
  spec.head_dim_qk = spec.head_dim_vo = kDim;
  spec.page_size = kPageSize;
  spec.variant.range.causal = true;
  kvloom::Capacity capacity;
  capacity.max_requests = 2;
  capacity.max_query_tokens = 128;
  capacity.max_kv_tokens = kPages * kPageSize;

  kvloom::Engine engine(spec, capacity);
  std::printf("kernel %s, workspace %lld bytes\n", engine.kernel_key().c_str(), (long long)engine.workspace_bytes());
  Cache cache;
  std::puts("prefill");
  step(engine, cache, {70, 33});
  std::puts("decode");
  for (int i = 0; i < 3; ++i) step(engine, cache, {1, 1});
  return 0;
}
