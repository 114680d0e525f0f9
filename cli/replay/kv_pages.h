// Where K and V lie in a paged cache: a pool is K of all pages, then V of all pages (MLA: V lies in K), on whatever machine its memory is.
#pragma once

#include "cli/replay/models.h"
#include "kvloom/api/engine.h"

namespace kvloom::replay {

struct KvShape {
  DType dtype = DType::bf16;
  KvLayout layout = KvLayout::hnd;
  int32_t page_size = 16;
  int64_t pages = 0;
  int32_t pools = 1;  // one a layer, or one that all layers read
};

class KvPages {
 public:
  KvPages(const Model& model, const KvShape& shape);

  // Bytes.
  int64_t k_page() const { return k_page_; }
  int64_t v_page() const { return v_page_; }  // 0: V lies in K
  int64_t pool_bytes() const { return (k_page_ + v_page_) * shape_.pages; }
  int64_t bytes() const { return pool_bytes() * shape_.pools; }
  /// From the first pool to a layer's; within a pool, from K to V.
  int64_t pool_of(int32_t layer) const { return (shape_.pools == 1 ? 0 : layer) * pool_bytes(); }
  int64_t v_begin() const { return k_page_ * shape_.pages; }

  /// Of pools that begin at `pools`: [pages, heads, page_size, dim] or [pages, page_size, heads, dim] by layout. MLA: v() is part of k().
  Tensor k(const char* pools, int32_t layer) const;
  Tensor v(const char* pools, int32_t layer) const;

 private:
  Tensor view(const char* base, int32_t dim, int32_t row_dim) const;

  KvShape shape_;
  int32_t heads_, dim_qk_, dim_vo_;
  int64_t k_page_, v_page_;
};

}  // namespace kvloom::replay
