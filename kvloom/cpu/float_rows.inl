// Rows of Q, K and V of any type as fp32, and their rotation. Compiled once a target.
#pragma once

#include "kvloom/cpu/rope_table.h"

namespace kvloom::cpu::KVLOOM_TARGET {
namespace {

template <DType kType>
KVLOOM_SIMD Vec load_as(const void* src, int64_t i) {
  if constexpr (kType == DType::f32) return load(static_cast<const float*>(src) + i);
  if constexpr (kType == DType::f16) return load_f16(static_cast<const uint16_t*>(src) + i);
  if constexpr (kType == DType::bf16) return load_bf16(static_cast<const uint16_t*>(src) + i);
  if constexpr (kType == DType::e4m3) return load_e4m3(static_cast<const uint8_t*>(src) + i);
  if constexpr (kType == DType::e5m2) return load_e5m2(static_cast<const uint8_t*>(src) + i);
}

/// dst [padded] = elements [offset, offset + n) of src as fp32, then zeros.
template <DType kType>
void convert_row(const void* src, int64_t offset, int32_t n, int32_t padded, float* dst) {
  int32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(dst + i, load_as<kType>(src, offset + i));
  for (; i < n; ++i) dst[i] = load_as_float(src, kType, offset + i);
  for (; i < padded; ++i) dst[i] = 0.0f;
}

using ConvertRow = void (*)(const void* src, int64_t offset, int32_t n, int32_t padded, float* dst);
ConvertRow convert_row_of(DType t) {
  switch (t) {
    case DType::f32:
      return convert_row<DType::f32>;
    case DType::f16:
      return convert_row<DType::f16>;
    case DType::bf16:
      return convert_row<DType::bf16>;
    case DType::e4m3:
      return convert_row<DType::e4m3>;
    case DType::e5m2:
      return convert_row<DType::e5m2>;
  }
  return nullptr;
}

/// Turns the first 2 * pairs dims of x by the table's position.
void rotate_row(const RopeTable& table, float* __restrict x) {
  const float* __restrict c = table.cos;
  const float* __restrict s = table.sin;
  const int32_t n = table.pairs;
  if (table.mode == RopeMode::half_split) {
    for (int32_t i = 0; i < n; ++i) {
      const float a = x[i], b = x[i + n];
      x[i] = a * c[i] - b * s[i];
      x[i + n] = b * c[i] + a * s[i];
    }
  } else {
    for (int32_t i = 0; i < n; ++i) {
      const float a = x[2 * i], b = x[2 * i + 1];
      x[2 * i] = a * c[i] - b * s[i];
      x[2 * i + 1] = b * c[i] + a * s[i];
    }
  }
}

}  // namespace
}  // namespace kvloom::cpu::KVLOOM_TARGET
