// Arithmetic that has an instruction of its own.
#pragma once

#include "kvloom/base/dtype.h"

namespace kvloom::ptx {

/// x, as something that was computed and is to be kept: the compiler would work it out again from the thread's number wherever it is used.
__device__ __forceinline__ uint32_t kept(uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

/// Waits for x, which is not ~0: a load whose value nobody uses is no instruction.
__device__ __forceinline__ void wait_for(uint32_t x) { asm volatile("{ .reg .pred p; setp.eq.u32 p, %0, 0xffffffff; @p trap; }" ::"r"(x)); }

__device__ __forceinline__ const char* kept(const char* x) {
  asm volatile("" : "+l"(x));
  return x;
}

/// base + index * unit.
__device__ __forceinline__ const char* address_of(const char* base, uint32_t index, uint32_t unit) {
  const char* at;
  asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(at) : "r"(index), "r"(unit), "l"(base));
  return at;
}

/// 1 / x, relative error 2^-22, of a normal number.
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// 2^x, relative error 2^-22; 2^-inf = 0.
__device__ __forceinline__ float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float lg2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Sine and cosine of x radians, |x| <= pi: absolute error 2^-20.9.
__device__ __forceinline__ float sin_small(float x) {
  float y;
  asm("sin.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float cos_small(float x) {
  float y;
  asm("cos.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Two floats as 16-bit numbers in one register, `low` in the low half; rounds to nearest even.
template <DType kType>
__device__ __forceinline__ uint32_t pack_16(float low, float high) {
  uint32_t r;
  if constexpr (kType == DType::bf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  } else {
    static_assert(kType == DType::f16, "a 16-bit type");
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  }
  return r;
}

}  // namespace kvloom::ptx
