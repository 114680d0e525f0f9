// The tensors of a case in device memory: copied there as they lie, gaps and poison included.
#pragma once

#include "cli/check/materialise.h"
#include "kvloom/api/gpu.h"

#include <deque>

namespace kvloom::check {

class GpuTensors {
 public:
  GpuTensors(const Case& c, const Batch& batch, const RunTensors& host, int32_t device);

  const RunTensors& tensors() const { return tensors_; }
  /// O and LSE as the host has them (poisoned) to the device; and back.
  void upload_outputs();
  void download_outputs();

 private:
  struct Output {
    GpuBuffer buffer;
    void* host = nullptr;
  };
  void* put(const void* data, int64_t bytes);
  void move(Tensor& t);
  Output move_output(Tensor& t);

  int32_t device_;
  RunTensors tensors_;
  std::vector<VariantParam> params_;
  std::deque<GpuBuffer> buffers_;
  Output o_, lse_;
};

}  // namespace kvloom::check
