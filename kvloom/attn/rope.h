// Rotary position embedding. Formula and scaling rule: contract/variant.h (RopeSpec). Angles are formed in double on the host and reduced
// before the sine, so a position of a million is as exact as a position of one.
#pragma once

#include "kvloom/base/math.h"
#include "kvloom/contract/variant.h"

#if !defined(__CUDACC_RTC__)
#include <cmath>
#endif

namespace kvloom {

/// Dims that rotate: the spec's, or the whole head.
KVLOOM_HD int32_t rotary_dim(const RopeSpec& s, int32_t head_dim) { return s.rotary_dim > 0 ? s.rotary_dim : head_dim; }

#if !defined(__CUDACC_RTC__)

/// Radians per position of pair i (0 .. rotary_dim/2 - 1), Llama 3.1 scaling applied.
inline double rope_frequency(const RopeSpec& s, int32_t head_dim, int32_t i) {
  const double f = std::pow(double(s.theta), -2.0 * i / rotary_dim(s, head_dim));
  if (s.high_freq_factor <= 0.0f) return f / s.scaling;
  const double wavelength = 2.0 * 3.14159265358979323846 / f;
  const double ratio = s.original_context / wavelength;
  if (ratio > s.high_freq_factor) return f;
  if (ratio < s.low_freq_factor) return f / s.scaling;
  const double smooth = (ratio - s.low_freq_factor) / (double(s.high_freq_factor) - s.low_freq_factor);
  return (1.0 - smooth) * f / s.scaling + smooth * f;
}

/// Index of the dim that dim d is paired with, d < rotary_dim.
inline int32_t rope_partner(RopeMode mode, int32_t d, int32_t rotary) {
  if (mode == RopeMode::interleaved) return d ^ 1;
  return d < rotary / 2 ? d + rotary / 2 : d - rotary / 2;
}
/// Index of the pair that dim d belongs to.
inline int32_t rope_pair(RopeMode mode, int32_t d, int32_t rotary) { return mode == RopeMode::interleaved ? d / 2 : d % (rotary / 2); }
/// -1 where the rotated value takes away the partner's sine part (the first of a pair), +1 where it adds it.
inline float rope_sign(RopeMode mode, int32_t d, int32_t rotary) {
  const bool first = mode == RopeMode::interleaved ? (d & 1) == 0 : d < rotary / 2;
  return first ? -1.0f : 1.0f;
}

#endif

}  // namespace kvloom
