#include "cli/bench/gpu_problem.h"

#include "kvloom/api/ops.h"

#include <algorithm>
#include <random>

namespace kvloom::cli {
namespace {

constexpr int64_t kRotateBytes = int64_t(1) << 30;  // copies of K and V until they are larger than any cache by far
constexpr int64_t kMostCopies = 16;

}  // namespace

GpuProblem::GpuProblem(const GpuShape& shape, int32_t device, GpuNormals& normals) : device_(device), tables_(shape) {
  make_caches(shape, normals);
  make_tensors(shape, normals);
  if (shape.rope_apart) positions_ = put(tables_.positions());
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

void GpuProblem::make_caches(const GpuShape& s, GpuNormals& normals) {
  const AttentionSpec& spec = s.spec;
  const int64_t heads = spec.num_kv_heads, slots = tables_.num_pages() * (spec.storage == Storage::paged ? spec.page_size : 1);
  const int64_t k_elements = slots * heads * spec.head_dim_qk, v_elements = s.v_in_k ? 0 : slots * heads * spec.head_dim_vo;
  const int64_t bytes = (k_elements + v_elements) * size_of(spec.kv_dtype);
  const int64_t copies = std::clamp<int64_t>(kRotateBytes / std::max<int64_t>(bytes, 1), 1, kMostCopies);
  for (int64_t i = 0; i < copies; ++i) {
    void* const k = keep(normals.make(k_elements, spec.kv_dtype));
    copies_.push_back({k, s.v_in_k ? k : keep(normals.make(v_elements, spec.kv_dtype))});
  }
  const auto cache = [&](void* data, int64_t dim) {
    return spec.storage == Storage::paged ? Tensor::dense(data, spec.kv_dtype, {tables_.num_pages(), spec.page_size, heads, dim})
                                          : Tensor::dense(data, spec.kv_dtype, {slots, heads, dim});
  };
  tensors_.k = cache(copies_[0].first, spec.head_dim_qk);
  tensors_.v = cache(copies_[0].second, s.v_in_k ? spec.head_dim_qk : spec.head_dim_vo);
  tensors_.v.shape[tensors_.v.ndim - 1] = spec.head_dim_vo;
}

void GpuProblem::make_tensors(const GpuShape& s, GpuNormals& normals) {
  const AttentionSpec& spec = s.spec;
  const int64_t tokens = tables_.num_tokens(), heads = spec.num_qo_heads;
  RunTensors& t = tensors_;
  t.q = Tensor::dense(keep(normals.make(tokens * heads * spec.head_dim_qk, spec.q_dtype)), spec.q_dtype, {tokens, heads, spec.head_dim_qk});
  t.o = Tensor::dense(keep(GpuBuffer(device_, tokens * heads * spec.head_dim_vo * size_of(spec.o_dtype))), spec.o_dtype,
                      {tokens, heads, spec.head_dim_vo});
  const std::vector<int32_t>& pages = tables_.pages();
  if (!pages.empty()) t.pages = IndexView(put(pages), int64_t(pages.size()));
  if (spec.variant.alibi) t.alibi_slopes = put(alibi_slopes(spec.num_qo_heads));
  if (spec.variant.sink) t.sink = put(std::vector<float>(size_t(heads), 0.5f));
  if (spec.variant.custom_mask) {
    std::vector<uint8_t> mask(size_t(tables_.mask_indptr().back()));
    std::mt19937 random(5);
    for (uint8_t& byte : mask) byte = uint8_t(random());
    t.mask = put(mask);
    t.mask_indptr = put(tables_.mask_indptr());
  }
}

void GpuProblem::rotate_keys(int i, const RopeSpec& rope, GpuStream& stream) const {
  const Tensor& k = tensors_.k;
  const Tensor rows = Tensor::dense(copies_[size_t(i) % copies_.size()].first, k.dtype, {k.shape[0] * k.shape[1], k.shape[2], k.shape[3]});
  OpOptions where;
  where.backend = Backend::cuda;
  where.device = device_;
  where.stream = stream.handle();
  apply_rope(rows, positions_, rope, where);
}

RunTensors GpuProblem::tensors(int i) const {
  RunTensors t = tensors_;
  t.k.data = copies_[size_t(i) % copies_.size()].first;
  t.v.data = copies_[size_t(i) % copies_.size()].second;
  return t;
}

}  // namespace kvloom::cli
