#pragma once
#include "kvloom/base/dtype.h"
#include "simt.h"
namespace kvloom::ptx {
inline uint32_t kept(uint32_t x) { return x; }
inline void wait_for(uint32_t) {}
inline const char* kept(const char* x) { return x; }
inline const char* address_of(const char* base, uint32_t index, uint32_t unit) { return base + uint64_t(index) * unit; }
inline float reciprocal(float x) { return 1.0f / x; }
inline float ex2(float x) { return std::exp2f(x); }
inline float lg2(float x) { return std::log2f(x); }
inline float sin_small(float x) { return std::sin(x); }
inline float cos_small(float x) { return std::cos(x); }
template <DType kType>
inline uint32_t pack_16(float low, float high) {
  return kType == DType::bf16 ? float_to_bf16(low) | uint32_t(float_to_bf16(high)) << 16 : float_to_f16(low) | uint32_t(float_to_f16(high)) << 16;
}
}  // namespace kvloom::ptx
