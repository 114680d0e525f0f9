// Rows of elements of any type to fp32 and back, in vectors: what merging, appending and rotating are made of.
#pragma once

#include "kvloom/base/dtype.h"
#include "kvloom/cpu/target.h"

namespace kvloom::cpu {

/// The row operations of one target. Rows are contiguous; no alignment is asked for.
struct ElementRows {
  /// out[i] = src[i]
  void (*widen)(const void* src, DType type, int64_t n, float* out);
  /// dst[i] = src[i], to nearest even; fp8 saturates, NaN stays NaN.
  void (*narrow)(const float* src, int64_t n, DType type, void* dst);
  /// acc[i] = weight * src[i], and acc[i] += weight * src[i]
  void (*weigh)(const void* src, DType type, int64_t n, float weight, float* acc);
  void (*add_weighed)(const void* src, DType type, int64_t n, float weight, float* acc);
};

const ElementRows& element_rows(Target target);

namespace portable {
extern const ElementRows kElementRows;
}
namespace avx2 {
extern const ElementRows kElementRows;
}
namespace avx512 {
extern const ElementRows kElementRows;
}

}  // namespace kvloom::cpu
