// The bytes of a paged KV cache: one pool of pages a layer, or one that all layers read where memory does not allow more.
#pragma once

#include "cli/replay/batcher.h"
#include "cli/replay/models.h"
#include "cli/replay/values.h"
#include "kvloom/api/engine.h"

namespace kvloom::replay {

struct KvShape {
  DType dtype = DType::bf16;
  KvLayout layout = KvLayout::hnd;
  int32_t page_size = 16;
  int64_t pages = 0;
  int32_t pools = 1;
};

class KvStore {
 public:
  /// Address space for all pages; memory is taken page by page as they are first written. Throws Error(out_of_memory).
  KvStore(const Model& model, const KvShape& shape, uint64_t seed);
  ~KvStore();
  KvStore(const KvStore&) = delete;
  KvStore& operator=(const KvStore&) = delete;

  /// Copies, and pages with undefined contents, which are filled with NaN: a key that is read without having been written shows.
  void apply(const std::vector<PageEvent>& events);

  /// Writes K and V of tokens [slice.kv_len - slice.q_len, slice.kv_len) of a sequence in every pool.
  void append(const Sequence& sequence, const Slice& slice, const Content& content);

  /// [pages, heads, page_size, dim] or [pages, page_size, heads, dim] by layout. MLA: v() is part of k().
  Tensor k(int32_t layer) const;
  Tensor v(int32_t layer) const;
  KvLayout layout() const { return shape_.layout; }
  ScaleParams scale() const;

  int32_t pools() const { return shape_.pools; }
  /// Bytes of one token in one pool.
  int64_t token_bytes() const { return model_.kv_elements() * element_; }

 private:
  Tensor view(const char* base, int32_t dim, int32_t row_dim) const;
  char* pool(int32_t layer) const { return memory_ + (shape_.pools == 1 ? 0 : layer) * pool_bytes_; }
  void write_rows(char* base, int32_t dim, int32_t page, int32_t slot, uint64_t hash);

  Model model_;
  KvShape shape_;
  int64_t element_;     // bytes
  int64_t k_page_;      // bytes of K of one page
  int64_t v_page_;      // bytes of V of one page; 0: V lies in K
  int64_t pool_bytes_;  // K of all pages, then V of all pages
  char* memory_ = nullptr;
  KvValues kv_;
  Values values_;
};

}  // namespace kvloom::replay
