// Element types of Q, K, V and O, and their conversions to and from fp32, bit by bit and the same on every compiler.
#pragma once

#include "kvloom/base/platform.h"

namespace kvloom {

enum class DType : uint8_t { f32 = 0, f16 = 1, bf16 = 2, e4m3 = 3, e5m2 = 4 };
inline constexpr int kNumDTypes = 5;

/// Bytes of one element; 0 for a value that names no type.
KVLOOM_HD constexpr int size_of(DType t) {
  switch (t) {
    case DType::f32: return 4;
    case DType::f16:
    case DType::bf16: return 2;
    case DType::e4m3:
    case DType::e5m2: return 1;
  }
  return 0;
}

/// The spelling used in kernel keys, logs, the command line and errors.
constexpr const char* name_of(DType t) {
  switch (t) {
    case DType::f32: return "f32";
    case DType::f16: return "f16";
    case DType::bf16: return "bf16";
    case DType::e4m3: return "e4m3";
    case DType::e5m2: return "e5m2";
  }
  return "unknown-dtype";
}

KVLOOM_HD constexpr bool is_fp8(DType t) { return t == DType::e4m3 || t == DType::e5m2; }

KVLOOM_HD float bits_to_float(uint32_t u) { return __builtin_bit_cast(float, u); }
KVLOOM_HD uint32_t float_to_bits(float f) { return __builtin_bit_cast(uint32_t, f); }

KVLOOM_HD float bf16_to_float(uint16_t h) { return bits_to_float(uint32_t(h) << 16); }

/// Round to nearest even; NaN stays a (quiet) NaN.
KVLOOM_HD uint16_t float_to_bf16(float f) {
  const uint32_t u = float_to_bits(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return uint16_t((u >> 16) | 0x40u);
  return uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

KVLOOM_HD float f16_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 0x1fu;
  const uint32_t mantissa = h & 0x3ffu;
  if (exponent == 31) return bits_to_float(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = float(mantissa) * 5.9604644775390625e-8f;  // subnormal: mantissa x 2^-24
    return bits_to_float(sign | float_to_bits(magnitude));
  }
  return bits_to_float(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

/// Round to nearest even; overflow gives infinity, as IEEE does; NaN stays NaN.
KVLOOM_HD uint16_t float_to_f16(float f) {
  const uint32_t u = float_to_bits(f);
  const uint16_t sign = uint16_t((u >> 16) & 0x8000u);
  const uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return uint16_t(sign | 0x7e00u);
  if (a >= 0x477ff000u) return uint16_t(sign | 0x7c00u);  // rounds past 65504
  if (a < 0x38800000u) {                                  // below 2^-14: add 0.5, whose last bit weighs 2^-24
    const float shifted = bits_to_float(a) + 0.5f;
    return uint16_t(sign | (float_to_bits(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = a + 0xfffu + ((a >> 13) & 1u);
  return uint16_t(sign | ((rounded - 0x38000000u) >> 13));
}

/// OCP fp8. e4m3 has no infinity and one NaN (0x7f); e5m2 is IEEE-like.
KVLOOM_HD float e4m3_to_float(uint8_t b) {
  const uint32_t sign = uint32_t(b & 0x80u) << 24;
  const uint32_t exponent = (b >> 3) & 0xfu;
  const uint32_t mantissa = b & 7u;
  if ((b & 0x7fu) == 0x7fu) return bits_to_float(sign | 0x7fc00000u);
  if (exponent == 0) return bits_to_float(sign | float_to_bits(float(mantissa) * 0.001953125f));  // x 2^-9
  return bits_to_float(sign | ((exponent + 120u) << 23) | (mantissa << 20));
}

KVLOOM_HD float e5m2_to_float(uint8_t b) { return f16_to_float(uint16_t(b << 8)); }

/// Round to nearest even, saturating at +-448 (the `satfinite` of the hardware converters); NaN gives NaN.
KVLOOM_HD uint8_t float_to_e4m3(float f) {
  const uint32_t u = float_to_bits(f);
  const uint8_t sign = uint8_t((u >> 24) & 0x80u);
  const uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return uint8_t(sign | 0x7fu);
  if (a >= 0x43e00000u) return uint8_t(sign | 0x7eu);  // 448 and up
  if (a < 0x3c800000u) {                               // below 2^-6: subnormal, last bit weighs 2^-9
    const float shifted = bits_to_float(a) + 16384.0f;
    return uint8_t(sign | (float_to_bits(shifted) - 0x46800000u));
  }
  const uint32_t rounded = a + 0x7ffffu + ((a >> 20) & 1u);
  const uint32_t code = (rounded >> 20) - (120u << 3);
  return uint8_t(sign | (code > 0x7eu ? 0x7eu : code));
}

/// Round to nearest even, saturating at +-57344; NaN gives NaN.
KVLOOM_HD uint8_t float_to_e5m2(float f) {
  const uint32_t u = float_to_bits(f);
  const uint8_t sign = uint8_t((u >> 24) & 0x80u);
  const uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return uint8_t(sign | 0x7fu);
  if (a >= 0x47600000u) return uint8_t(sign | 0x7bu);
  if (a < 0x38800000u) {  // below 2^-14: subnormal, last bit weighs 2^-16
    const float shifted = bits_to_float(a) + 128.0f;
    return uint8_t(sign | (float_to_bits(shifted) - 0x43000000u));
  }
  const uint32_t rounded = a + 0xfffffu + ((a >> 21) & 1u);
  const uint32_t code = (rounded >> 21) - (112u << 2);
  return uint8_t(sign | (code > 0x7bu ? 0x7bu : code));
}

/// One element at index `i` of an array of type `t`, as fp32.
KVLOOM_HD float load_as_float(const void* data, DType t, int64_t i) {
  switch (t) {
    case DType::f32: return static_cast<const float*>(data)[i];
    case DType::f16: return f16_to_float(static_cast<const uint16_t*>(data)[i]);
    case DType::bf16: return bf16_to_float(static_cast<const uint16_t*>(data)[i]);
    case DType::e4m3: return e4m3_to_float(static_cast<const uint8_t*>(data)[i]);
    case DType::e5m2: return e5m2_to_float(static_cast<const uint8_t*>(data)[i]);
  }
  return 0.0f;
}

/// The inverse, rounding to nearest even.
KVLOOM_HD void store_from_float(void* data, DType t, int64_t i, float x) {
  switch (t) {
    case DType::f32: static_cast<float*>(data)[i] = x; return;
    case DType::f16: static_cast<uint16_t*>(data)[i] = float_to_f16(x); return;
    case DType::bf16: static_cast<uint16_t*>(data)[i] = float_to_bf16(x); return;
    case DType::e4m3: static_cast<uint8_t*>(data)[i] = float_to_e4m3(x); return;
    case DType::e5m2: static_cast<uint8_t*>(data)[i] = float_to_e5m2(x); return;
  }
}

}  // namespace kvloom
