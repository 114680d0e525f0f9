// Sixteen requests answer about one long document: their page tables begin with the same pages. The planner sees it, and attends the
// document once for all of them (a level of its own) instead of once a request; the answer is the same.
#include "kvloom/api/engine.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <tuple>
#include <vector>

namespace {

using kvloom::DType;
using kvloom::IndexView;
using kvloom::Tensor;

constexpr int32_t kRequests = 16, kHeads = 8, kKvHeads = 2, kDim = 64, kPageSize = 16;
constexpr int32_t kDocument = 1024, kOwn = 40;  // tokens that all share, and of each request
constexpr int32_t kShared = kDocument / kPageSize, kOwnPages = (kOwn + kPageSize - 1) / kPageSize, kPages = kShared + kRequests * kOwnPages;

std::vector<float> random_floats(size_t n) {
  static std::mt19937 random(1);
  static std::normal_distribution<float> x;
  std::vector<float> v(n);
  for (float& f : v) f = x(random);
  return v;
}

}  // namespace

int main() {
  std::vector<int32_t> qo_indptr{0}, kv_len, indptr{0}, pages;
  for (int32_t r = 0; r < kRequests; ++r) {
    for (int32_t p = 0; p < kShared; ++p) pages.push_back(p);
    for (int32_t p = 0; p < kOwnPages; ++p) pages.push_back(kShared + r * kOwnPages + p);
    qo_indptr.push_back(r + 1);
    kv_len.push_back(kDocument + kOwn);
    indptr.push_back(int32_t(pages.size()));
  }
  kvloom::Batch batch;
  batch.num_requests = kRequests;
  batch.qo_indptr = IndexView(qo_indptr.data(), kRequests + 1);
  batch.kv_len = IndexView(kv_len.data(), kRequests);
  batch.list_indptr = IndexView(indptr.data(), kRequests + 1);
  batch.pages = IndexView(pages.data(), int64_t(pages.size()));

  const size_t cache = size_t(kPages) * kPageSize * kKvHeads * kDim, rows = size_t(kRequests) * kHeads * kDim;
  const std::vector<float> q = random_floats(rows), k = random_floats(cache), v = random_floats(cache);
  std::vector<float> shared(rows), alone(rows);
  kvloom::RunTensors t;
  t.q = Tensor::dense(q.data(), DType::f32, {kRequests, kHeads, kDim});
  t.k = Tensor::dense(k.data(), DType::f32, {kPages, kPageSize, kKvHeads, kDim});
  t.v = Tensor::dense(v.data(), DType::f32, {kPages, kPageSize, kKvHeads, kDim});

  kvloom::AttentionSpec spec;
  spec.num_qo_heads = kHeads;
  spec.num_kv_heads = kKvHeads;
  spec.head_dim_qk = spec.head_dim_vo = kDim;
  spec.page_size = kPageSize;
  spec.variant.range.causal = true;
  kvloom::Capacity capacity;
  capacity.max_requests = kRequests;
  capacity.max_query_tokens = kRequests;
  capacity.max_kv_tokens = kRequests * (kDocument + kOwn);
  capacity.max_level_rows = kRequests;  // every request's token, gathered by one shared level

  for (const auto& [levels, out, name] :
       {std::tuple{kvloom::LevelMode::automatic, &shared, "levels found"}, std::tuple{kvloom::LevelMode::off, &alone, "flat"}}) {
    kvloom::EngineOptions options;
    options.levels = levels;
    kvloom::Engine engine(spec, capacity, options);
    const kvloom::Plan plan = engine.plan(batch);
    t.o = Tensor::dense(out->data(), DType::f32, {kRequests, kHeads, kDim});
    engine.run(plan, t);
    int64_t keys = 0;  // a row group's keys are read once, however many rows it has
    for (const kvloom::RowGroup& group : plan.view().groups) keys += group.kv_end - group.kv_begin;
    std::printf("%-13s %d level(s), %lld keys read\n", name, plan.view().header->num_levels, (long long)keys);
  }
  float worst = 0.0f;
  for (size_t i = 0; i < rows; ++i) worst = std::max(worst, std::fabs(shared[i] - alone[i]));
  std::printf("largest difference %.2g\n", worst);
  return worst < 1e-5f ? 0 : 1;
}
