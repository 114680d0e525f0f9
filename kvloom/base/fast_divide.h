// Division of non-negative 32-bit integers by a number that is fixed at run time: one high multiply, one add, one shift.
// Granlund and Montgomery, "Division by invariant integers using multiplication", PLDI 1994.
#pragma once

#include "kvloom/base/platform.h"

namespace kvloom {

struct FastDivide {
  uint32_t divisor = 1;
  uint32_t multiplier = 1;
  uint32_t shift = 0;

  FastDivide() = default;
  /// d in [1, 2^31).
  explicit constexpr FastDivide(uint32_t d) : divisor(d) {
    while ((uint64_t(1) << shift) < d) ++shift;
    multiplier = uint32_t(((uint64_t(1) << 32) * ((uint64_t(1) << shift) - d)) / d + 1);
  }

  /// n / divisor for n in [0, 2^31).
  KVLOOM_HD uint32_t divide(uint32_t n) const {
#if defined(__CUDA_ARCH__)
    return (__umulhi(n, multiplier) + n) >> shift;
#else
    return uint32_t(((uint64_t(n) * multiplier) >> 32) + n) >> shift;
#endif
  }
};

}  // namespace kvloom
