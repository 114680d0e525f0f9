// fp8 to 16 bits, exactly, two numbers at a time; NaN stays NaN (and the infinities of e5m2 stay infinite).
#pragma once

#include "kvloom/base/dtype.h"

namespace kvloom::ptx {

/// Bytes of `a` (and zeros) in the order of the selector's nibbles.
__device__ __forceinline__ uint32_t permute_bytes(uint32_t a, uint32_t selector) {
  uint32_t r;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(r) : "r"(a), "r"(selector));
  return r;
}

/// Four e4m3 numbers as f16: bytes 0, 1 and bytes 2, 3.
__device__ __forceinline__ void e4m3x4_to_f16x4(uint32_t bytes, uint32_t& low, uint32_t& high) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h;}" : "=r"(low), "=r"(high) : "r"(bytes));
#else
  // Bits put in place give the value x 2^-8; 0x7f is carried out of the mantissa into the exponent, where it makes a NaN.
  const auto two = [](uint32_t spread) {  // each byte in the upper half of its 16 bits
    const uint32_t nan = ((spread & 0x7f007f00u) + 0x01000100u) & 0x80008000u;
    const uint32_t placed = (spread & 0x80008000u) | ((spread & 0x7f007f00u) >> 1);
    uint32_t r;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(placed), "r"(0x5c005c00u));
    return r | (nan >> 1) | (nan >> 2) | (nan >> 3) | (nan >> 4) | (nan >> 5) | (nan >> 6);
  };
  low = two(permute_bytes(bytes, 0x1404));
  high = two(permute_bytes(bytes, 0x3424));
#endif
}

/// Two f16 numbers as bf16, for numbers that have no more bits than a bf16 holds.
__device__ __forceinline__ uint32_t f16x2_to_bf16x2(uint32_t x) {
  float low, high;
  uint32_t r;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}" : "=f"(low), "=f"(high) : "r"(x));
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

/// Both halves of a 16-bit pair as floats.
template <DType kType>
__device__ __forceinline__ void widen_16(uint32_t x, float& low, float& high) {
  if constexpr (kType == DType::bf16) {
    low = bits_to_float(x << 16), high = bits_to_float(x & 0xffff0000u);
  } else {
    static_assert(kType == DType::f16, "a 16-bit type");
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}" : "=f"(low), "=f"(high) : "r"(x));
  }
}

/// Four fp8 numbers: bytes 0, 1 to `low`, bytes 2, 3 to `high`, as f16 or bf16.
template <DType kFrom, DType kTo>
__device__ __forceinline__ void widen_fp8x4(uint32_t bytes, uint32_t& low, uint32_t& high) {
  if constexpr (kFrom == DType::e5m2) {
    low = permute_bytes(bytes, 0x1404);
    high = permute_bytes(bytes, 0x3424);
  } else {
    static_assert(kFrom == DType::e4m3, "an fp8 type");
    e4m3x4_to_f16x4(bytes, low, high);
  }
  if constexpr (kTo == DType::bf16) low = f16x2_to_bf16x2(low), high = f16x2_to_bf16x2(high);
}

}  // namespace kvloom::ptx
