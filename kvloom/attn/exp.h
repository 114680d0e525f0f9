// exp2, tanh and the logistic function as plain arithmetic: no library call, no table, no branch, so a loop over keys vectorises on every
// compiler and the same source runs on a GPU. Products and sums are written apart (two roundings) so every target gives the same bits.
#pragma once

#include "kvloom/base/dtype.h"
#include "kvloom/base/math.h"

namespace kvloom {

/// Minimax coefficients of 2^f = 1 + f (c1 + c2 f + .. + c6 f^5) on [-1/2, 1/2]; relative error of the fit 1.9e-9.
inline constexpr float kExp2C1 = 0.693147206f, kExp2C2 = 0.240226469f, kExp2C3 = 0.0555032878f, kExp2C4 = 0.00961848896f,
                       kExp2C5 = 0.00133999312f, kExp2C6 = 0.00015345812f;
/// 1.5 * 2^23: adding it to |t| < 2^22 leaves t rounded to an integer in the low bits of the sum.
inline constexpr float kRoundShift = 12582912.0f;

/// The exponent and the rest of 2^t = 2^n (1 + rest), n the integer nearest to t. `shifted` carries n in its low bits.
struct Exp2Parts {
  float shifted;
  float n;
  float rest;
};
KVLOOM_HD Exp2Parts exp2_parts(float t) {
  const float shifted = t + kRoundShift;
  const float n = shifted - kRoundShift;
  const float f = t - n;
  const float q = kExp2C1 + f * (kExp2C2 + f * (kExp2C3 + f * (kExp2C4 + f * (kExp2C5 + f * kExp2C6))));
  return {shifted, n, f * q};
}

/// 2^t. Relative error below 2.5e-7 for t in [-125, 127]; at and below -127 (-inf included) exactly 0, between the two off by less than
/// 2^-126; above 127 it is 2^127. NaN stays NaN.
KVLOOM_HD float exp2_of(float t) {
  t = t < -127.0f ? -127.0f : t;
  t = t > 127.0f ? 127.0f : t;
  const Exp2Parts e = exp2_parts(t);
  return bits_to_float(float_to_bits(1.0f + e.rest) + (float_to_bits(e.shifted) << 23));
}

/// tanh(x) = e / (e + 2) with e = exp(2 x) - 1, formed without cancellation. Relative error below 6e-7 everywhere, +-0 included; NaN
/// stays NaN.
/// On a GPU: (e - 1) / (e + 1) with e = exp(2 x) by the special-function unit: absolute error below 1e-7 near 0, relative 3e-7 elsewhere
/// (logits are fp32 sums of 16-bit products).
KVLOOM_HD float tanh_of(float x) {
#if defined(__CUDA_ARCH__)
  const float t = x * (2.0f * kLog2e);
  const float e = ::exp2f(t > 30.0f ? 30.0f : t);  // NaN stays NaN
  return (e - 1.0f) * __fdividef(1.0f, e + 1.0f);
#else
  float t = x * (2.0f * kLog2e);
  t = t < -30.0f ? -30.0f : t;  // tanh is +-1 to the last bit long before
  t = t > 30.0f ? 30.0f : t;
  const Exp2Parts e = exp2_parts(t);
  const float scale = bits_to_float((float_to_bits(e.shifted) << 23) + 0x3f800000u);  // 2^n
  const float expm1 = scale * e.rest + (scale - 1.0f);
  return expm1 / (expm1 + 2.0f);
#endif
}

/// Within this on either side of 0 tanh_near() serves.
inline constexpr float kTanhNear = 0.4375f;
/// tanh x for |x| <= kTanhNear by multiply-adds alone: minimax polynomial of tanh(x) / x in x^2, relative error 2.9e-7 in fp32.
KVLOOM_HD float tanh_near(float x) {
  const float z = x * x;
  float ratio = -0.04641977697610855f * z + 0.1324603259563446f;
  ratio = ratio * z - 0.3333004117012024f;
  ratio = ratio * z + 0.9999998211860657f;
  return x * ratio;
}

/// 1 / (1 + exp(-x)): exactly 0 for -inf, 1 for +inf; NaN stays NaN. On a GPU relative error below 1e-6.
KVLOOM_HD float sigmoid_of(float x) {
#if defined(__CUDA_ARCH__)
  return __fdividef(1.0f, 1.0f + __expf(-x));
#else
  const float e = exp2_of(x * kLog2e);  // of x, not -x: it reaches 0 but never infinity
  return e / (1.0f + e);
#endif
}

}  // namespace kvloom
