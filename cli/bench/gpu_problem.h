// The tensors of one row in device memory: normal values, pages in random order, K and V in copies that no cache holds.
#pragma once

#include "cli/bench/gpu_normals.h"
#include "cli/bench/gpu_shapes.h"
#include "kvloom/api/engine.h"

#include <deque>
#include <utility>
#include <vector>

namespace kvloom::cli {

class GpuProblem {
 public:
  GpuProblem(const GpuShape& shape, int32_t device, GpuNormals& normals);
  GpuProblem(const GpuProblem&) = delete;
  GpuProblem& operator=(const GpuProblem&) = delete;

  const Batch& batch() const { return batch_; }
  const Capacity& capacity() const { return capacity_; }
  int copies() const { return int(copies_.size()); }
  /// Of run `i`: K and V are those of copy i modulo copies().
  RunTensors tensors(int i) const;

 private:
  void make_tables(const GpuShape& shape);
  void make_caches(const GpuShape& shape, GpuNormals& normals);
  void make_tensors(const GpuShape& shape, GpuNormals& normals);
  char* keep(GpuBuffer buffer);
  template <class T>
  T* put(const std::vector<T>& x);

  int32_t device_;
  int64_t num_pages_ = 0;  // ragged: tokens
  std::vector<int32_t> qo_indptr_{0}, list_indptr_{0}, pages_;
  std::vector<int64_t> mask_indptr_{0};
  Batch batch_;
  Capacity capacity_;
  RunTensors tensors_;
  std::vector<std::pair<void*, void*>> copies_;  // K and V
  std::deque<GpuBuffer> buffers_;
};

}  // namespace kvloom::cli
