#include "cli/bench/gpu_problem.h"

#include "kvloom/base/math.h"

#include <algorithm>
#include <numeric>
#include <random>

namespace kvloom::cli {
namespace {

constexpr int64_t kRotateBytes = int64_t(1) << 30;  // copies of K and V until they are larger than any cache by far
constexpr int64_t kMostCopies = 16;

}  // namespace

GpuProblem::GpuProblem(const GpuShape& shape, int32_t device, GpuNormals& normals) : device_(device) {
  make_tables(shape);
  make_caches(shape, normals);
  make_tensors(shape, normals);
}

char* GpuProblem::keep(GpuBuffer buffer) {
  buffers_.push_back(std::move(buffer));
  return buffers_.back().data();
}

template <class T>
T* GpuProblem::put(const std::vector<T>& x) {
  GpuBuffer buffer(device_, int64_t(x.size() * sizeof(T)));
  buffer.upload(x.data(), buffer.size());
  return reinterpret_cast<T*>(keep(std::move(buffer)));
}

void GpuProblem::make_tables(const GpuShape& s) {
  const int32_t page = s.spec.page_size, requests = int32_t(s.q_len.size());
  for (int32_t r = 0; r < requests; ++r) {
    const int32_t q = s.q_len[size_t(r)], kv = s.kv_len[size_t(r)];
    qo_indptr_.push_back(qo_indptr_.back() + q);
    list_indptr_.push_back(list_indptr_.back() + ceil_div(kv, page));
    mask_indptr_.push_back(mask_indptr_.back() + (int64_t(q) * kv + 7) / 8);
  }
  num_pages_ = list_indptr_.back();
  batch_.num_requests = requests;
  batch_.qo_indptr = IndexView(qo_indptr_.data(), int64_t(qo_indptr_.size()));
  batch_.kv_len = IndexView(s.kv_len.data(), int64_t(s.kv_len.size()));
  batch_.list_indptr = IndexView(list_indptr_.data(), int64_t(list_indptr_.size()));
  capacity_ = {requests, qo_indptr_.back(), std::accumulate(s.kv_len.begin(), s.kv_len.end(), int64_t(0)), 0, 0};
  if (s.spec.storage != Storage::paged) return;
  const int32_t shared = s.shared_prefix / page;
  num_pages_ -= int64_t(shared) * (requests - 1);
  std::vector<int32_t> pool(static_cast<size_t>(num_pages_));
  std::iota(pool.begin(), pool.end(), 0);
  std::shuffle(pool.begin(), pool.end(), std::mt19937(3));
  auto next = pool.begin() + shared;  // before it: the pages of everybody
  for (int32_t r = 0; r < requests; ++r) {
    const int32_t own = list_indptr_[size_t(r) + 1] - list_indptr_[size_t(r)] - shared;
    pages_.insert(pages_.end(), pool.begin(), pool.begin() + shared);
    pages_.insert(pages_.end(), next, next + own);
    next += own;
  }
  batch_.pages = IndexView(pages_.data(), int64_t(pages_.size()));
  if (shared > 0) capacity_.max_level_rows = capacity_.max_query_tokens;
}

void GpuProblem::make_caches(const GpuShape& s, GpuNormals& normals) {
  const AttentionSpec& spec = s.spec;
  const int64_t heads = spec.num_kv_heads, slots = num_pages_ * (spec.storage == Storage::paged ? spec.page_size : 1);
  const int64_t k_elements = slots * heads * spec.head_dim_qk, v_elements = s.v_in_k ? 0 : slots * heads * spec.head_dim_vo;
  const int64_t bytes = (k_elements + v_elements) * size_of(spec.kv_dtype);
  const int64_t copies = std::clamp<int64_t>(kRotateBytes / std::max<int64_t>(bytes, 1), 1, kMostCopies);
  for (int64_t i = 0; i < copies; ++i) {
    void* const k = keep(normals.make(k_elements, spec.kv_dtype));
    copies_.push_back({k, s.v_in_k ? k : keep(normals.make(v_elements, spec.kv_dtype))});
  }
  const auto cache = [&](void* data, int64_t dim) {
    return spec.storage == Storage::paged ? Tensor::dense(data, spec.kv_dtype, {num_pages_, spec.page_size, heads, dim})
                                          : Tensor::dense(data, spec.kv_dtype, {slots, heads, dim});
  };
  tensors_.k = cache(copies_[0].first, spec.head_dim_qk);
  tensors_.v = cache(copies_[0].second, s.v_in_k ? spec.head_dim_qk : spec.head_dim_vo);
  tensors_.v.shape[tensors_.v.ndim - 1] = spec.head_dim_vo;
}

void GpuProblem::make_tensors(const GpuShape& s, GpuNormals& normals) {
  const AttentionSpec& spec = s.spec;
  const int64_t tokens = qo_indptr_.back(), heads = spec.num_qo_heads;
  RunTensors& t = tensors_;
  t.q = Tensor::dense(keep(normals.make(tokens * heads * spec.head_dim_qk, spec.q_dtype)), spec.q_dtype, {tokens, heads, spec.head_dim_qk});
  t.o = Tensor::dense(keep(GpuBuffer(device_, tokens * heads * spec.head_dim_vo * size_of(spec.o_dtype))), spec.o_dtype,
                      {tokens, heads, spec.head_dim_vo});
  if (!pages_.empty()) t.pages = IndexView(put(pages_), int64_t(pages_.size()));
  if (spec.variant.alibi) t.alibi_slopes = put(alibi_slopes(spec.num_qo_heads));
  if (spec.variant.sink) t.sink = put(std::vector<float>(size_t(heads), 0.5f));
  if (spec.variant.custom_mask) {
    std::vector<uint8_t> mask(size_t(mask_indptr_.back()));
    std::mt19937 random(5);
    for (uint8_t& byte : mask) byte = uint8_t(random());
    t.mask = put(mask);
    t.mask_indptr = put(mask_indptr_);
  }
}

RunTensors GpuProblem::tensors(int i) const {
  RunTensors t = tensors_;
  t.k.data = copies_[size_t(i) % copies_.size()].first;
  t.v.data = copies_[size_t(i) % copies_.size()].second;
  return t;
}

}  // namespace kvloom::cli
