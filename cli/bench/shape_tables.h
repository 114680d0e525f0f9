// The index arrays of a shape, in host memory: lengths, and pages in random order.
#pragma once

#include "cli/bench/gpu_shapes.h"
#include "kvloom/contract/batch.h"

namespace kvloom::cli {

class ShapeTables {
 public:
  /// Points at the shape's lengths, which stay where they are.
  explicit ShapeTables(const GpuShape& shape);
  ShapeTables(const ShapeTables&) = delete;
  ShapeTables& operator=(const ShapeTables&) = delete;

  const Batch& batch() const { return batch_; }
  /// Of this step alone.
  const Capacity& capacity() const { return capacity_; }
  /// Ragged: tokens.
  int64_t num_pages() const { return num_pages_; }
  int64_t num_tokens() const { return qo_indptr_.back(); }
  /// None: ragged.
  const std::vector<int32_t>& pages() const { return pages_; }
  const std::vector<int64_t>& mask_indptr() const { return mask_indptr_; }
  /// The place of every slot of the pages in the list that it is in.
  std::vector<int32_t> positions() const;

 private:
  void make_pages(const GpuShape& shape);

  int32_t page_size_;
  int64_t num_pages_ = 0;
  std::vector<int32_t> qo_indptr_{0}, list_indptr_{0}, pages_;
  std::vector<int64_t> mask_indptr_{0};
  Batch batch_;
  Capacity capacity_;
};

}  // namespace kvloom::cli
