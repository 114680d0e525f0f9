// fp8 to 16 bits by putting bits in place: an fp8 number's sign, exponent and mantissa are where a 16-bit number's are, a few bits further, so
// what comes out is the number times a power of two, subnormal ones included; the power goes into a factor that is there anyway. Seven
// integer instructions for four numbers, where conversions take as many on a slower pipe. NaN and infinities become finite numbers: finite
// keys and values are the caller's contract.
#pragma once

#include "kvloom/base/dtype.h"

namespace kvloom::tile {

/// How much smaller what place_fp8x4 makes is: 2^-log2.
template <DType kFrom, DType kTo>
KVLOOM_HD constexpr int placed_fp8_log2() {
  static_assert(is_fp8(kFrom) && (kTo == DType::bf16 || kTo == DType::f16));
  const int bias = kFrom == DType::e4m3 ? 7 : 15;
  return (kTo == DType::bf16 ? 127 : 15) - bias;
}

/// Bytes 0 and 2 of four fp8 numbers to the halves of `even`, bytes 1 and 3 to those of `odd`.
template <DType kFrom, DType kTo>
KVLOOM_HD void place_fp8x4(uint32_t bytes, uint32_t& even, uint32_t& odd) {
  constexpr int kExponentFrom = kFrom == DType::e4m3 ? 4 : 5, kExponentTo = kTo == DType::bf16 ? 8 : 5;
  constexpr int kDown = kExponentTo - kExponentFrom;
  constexpr uint32_t kMagnitude = ((0x7f00u >> kDown) << 16) | (0x7f00u >> kDown);
  const uint32_t up = bytes << 8;
  even = (up & 0x80008000u) | ((up >> kDown) & kMagnitude);
  odd = (bytes & 0x80008000u) | ((bytes >> kDown) & kMagnitude);
}

}  // namespace kvloom::tile
