// Normal values in device memory: what tensor cores are given decides how much power they draw, so nothing is timed on zeros.
#pragma once

#include "kvloom/api/gpu.h"
#include "kvloom/base/dtype.h"

#include <map>

namespace kvloom::cli {

/// Blocks of a prime number of values are made on the host, one a type, and repeated by copies on the device.
class GpuNormals {
 public:
  explicit GpuNormals(int32_t device) : device_(device), stream_(device) {}
  /// Buffers of one type are parts of one sequence, each from where the last one ended.
  GpuBuffer make(int64_t elements, DType dtype);

 private:
  struct Block {
    GpuBuffer values;
    int64_t next = 0;  // value to go on with
  };
  int32_t device_;
  GpuStream stream_;
  std::map<DType, Block> blocks_;
};

}  // namespace kvloom::cli
