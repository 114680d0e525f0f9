// The bytes of a paged KV cache: one pool of pages a layer, or one that all layers read where memory does not allow more.
#pragma once

#include "cli/replay/batcher.h"
#include "cli/replay/kv_pages.h"
#include "cli/replay/values.h"

namespace kvloom::replay {

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

  Tensor k(int32_t layer) const { return pages_.k(memory_, layer); }
  Tensor v(int32_t layer) const { return pages_.v(memory_, layer); }
  KvLayout layout() const { return shape_.layout; }
  ScaleParams scale() const { return kv_.scale(); }

  int32_t pools() const { return shape_.pools; }
  /// Bytes of one token in one pool.
  int64_t token_bytes() const { return model_.kv_elements() * element_; }

 private:
  char* pool(int32_t p) const { return memory_ + p * pages_.pool_bytes(); }
  int64_t mapped_bytes() const;
  void write_rows(char* base, int32_t dim, int32_t page, int32_t slot, uint64_t hash);

  Model model_;
  KvShape shape_;
  KvPages pages_;
  int64_t element_;  // bytes
  char* memory_ = nullptr;
  KvValues kv_;
  Values values_;
};

}  // namespace kvloom::replay
