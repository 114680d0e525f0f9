// Descriptions of tensors by the driver, kept: a step's layers are launched with the same ones time and again.
#pragma once

#include "kvloom/contract/attend_boxes.h"
#include "kvloom/jit/driver.h"

namespace kvloom::runtime {

/// What cuTensorMapEncodeTiled is asked for, without gaps: compared byte by byte.
struct TensorMapShape {
  static constexpr int kRank = 5;
  const void* data;
  uint64_t dims[kRank];
  uint64_t strides[kRank - 1];  // of dimensions 1 to 4, bytes
  unsigned box[kRank];
  jit::CuTensorMapType type;
  jit::CuTensorMapSwizzle swizzle;
  int promotion;
};
static_assert(sizeof(TensorMapShape) == 8 + 8 * 9 + 4 * 8);

/// The map, by the driver unless this thread had one of the same shape before. `encode`: the driver's entry.
jit::CuResult tensor_map(decltype(jit::Driver::tensor_map_encode_tiled) encode, const TensorMapShape& shape, TensorMap& map);

}  // namespace kvloom::runtime
