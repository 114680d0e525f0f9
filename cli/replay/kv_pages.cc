#include "cli/replay/kv_pages.h"

#include <algorithm>

namespace kvloom::replay {

KvPages::KvPages(const Model& model, const KvShape& shape)
    : shape_(shape), heads_(model.kv_heads), dim_qk_(model.head_dim_qk), dim_vo_(model.head_dim_vo) {
  const int64_t rows = int64_t(size_of(shape.dtype)) * shape.page_size * model.kv_heads;
  k_page_ = rows * model.head_dim_qk;
  v_page_ = model.v_in_k ? 0 : rows * model.head_dim_vo;
}

/// `dim` elements of rows that are `row_dim` apart.
Tensor KvPages::view(const char* base, int32_t dim, int32_t row_dim) const {
  const bool hnd = shape_.layout == KvLayout::hnd;
  const int64_t heads = heads_, slots = shape_.page_size;
  Tensor t = Tensor::dense(base, shape_.dtype, {shape_.pages, hnd ? heads : slots, hnd ? slots : heads, dim});
  const int64_t stride[4] = {heads * slots * row_dim, (hnd ? slots : heads) * row_dim, row_dim, 1};
  std::copy(stride, stride + 4, t.stride);
  return t;
}

Tensor KvPages::k(const char* pools, int32_t layer) const { return view(pools + pool_of(layer), dim_qk_, dim_qk_); }

Tensor KvPages::v(const char* pools, int32_t layer) const {
  const char* const pool = pools + pool_of(layer);
  return v_page_ == 0 ? view(pool, dim_vo_, dim_qk_) : view(pool + v_begin(), dim_vo_, dim_vo_);
}

}  // namespace kvloom::replay
