// The tensors of one row in device memory: normal values, pages in random order, K and V in copies that no cache holds.
#pragma once

#include "cli/bench/gpu_normals.h"
#include "cli/bench/shape_tables.h"
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

  const Batch& batch() const { return tables_.batch(); }
  const Capacity& capacity() const { return tables_.capacity(); }
  int copies() const { return int(copies_.size()); }
  /// Of run `i`: K and V are those of copy i modulo copies().
  RunTensors tensors(int i) const;
  /// Of a shape with `rope_apart`: puts a launch into `stream` that turns all keys of copy i by their place in their lists.
  void rotate_keys(int i, const RopeSpec& rope, GpuStream& stream) const;

 private:
  void make_caches(const GpuShape& shape, GpuNormals& normals);
  void make_tensors(const GpuShape& shape, GpuNormals& normals);
  char* keep(GpuBuffer buffer);
  template <class T>
  T* put(const std::vector<T>& x);

  int32_t device_;
  ShapeTables tables_;
  RunTensors tensors_;
  std::vector<std::pair<void*, void*>> copies_;  // K and V
  const int32_t* positions_ = nullptr;           // [slots], on the device
  std::deque<GpuBuffer> buffers_;
};

}  // namespace kvloom::cli
