// Angles of fused RoPE in fixed point: a turn is 2^64, so position times turns-per-position wraps by itself, and a position of a million is
// as exact as a position of one. Turns per position are two words, 2^32 high + low, and low is signed: one product of words less where positions may be
// negative. attn/rope.h has the frequencies.
#pragma once

#include "kvloom/attn/rope.h"
#include "kvloom/device/ptx/math.cuh"

namespace kvloom::block {

/// `pos` times `turns`, of which only the fraction of a turn counts: signed, a turn is 2^32.
__device__ __forceinline__ int32_t turn_fraction(uint64_t turns, int32_t pos) {
  return int32_t(uint32_t(pos) * uint32_t(turns >> 32) + uint32_t(__mulhi(pos, int32_t(uint32_t(turns)))));
}
/// The same in radians, within pi of 0.
__device__ __forceinline__ float turn_angle(uint64_t turns, int32_t pos) {
  return float(turn_fraction(turns, pos)) * 1.4629180792671596e-9f;  // pi / 2^31
}
__device__ __forceinline__ float turn_cos(uint64_t turns, int32_t pos) { return ptx::cos_small(turn_angle(turns, pos)); }
__device__ __forceinline__ float turn_sin(uint64_t turns, int32_t pos) { return ptx::sin_small(turn_angle(turns, pos)); }

/// Turns per position of pair i, as above: the frequency rule of RopeSpec in double, rounded to 2^-64.
__device__ __forceinline__ uint64_t turns_of(const RopeSpec& s, int32_t head_dim, int32_t i) {
  double f = exp2(-2.0 * i / rotary_dim(s, head_dim) * log2(double(s.theta)));
  if (s.high_freq_factor <= 0.0f) {
    f /= s.scaling;
  } else {
    const double ratio = s.original_context * f * 0.15915494309189535;  // in wavelengths
    if (ratio < s.low_freq_factor) {
      f /= s.scaling;
    } else if (ratio <= s.high_freq_factor) {
      const double smooth = (ratio - s.low_freq_factor) / (double(s.high_freq_factor) - s.low_freq_factor);
      f = (1.0 - smooth) * f / s.scaling + smooth * f;
    }
  }
  const double turns = f * 0.15915494309189535;
  const double fraction = turns - floor(turns);  // of a turn: whole ones change nothing
  const uint64_t whole = uint64_t(fraction * 18446744073709551616.0);
  return whole + (whole << 1 & uint64_t(1) << 32);  // its low word as a signed one is 2^32 less from 2^31 on
}

/// Fills `turns` [rotary_dim / 2] in shared memory, by `threads` threads, of which this is number `thread`; the caller puts a barrier behind it.
__device__ __forceinline__ void fill_turns(const RopeSpec& s, int32_t head_dim, uint64_t* turns, int32_t thread, int32_t threads) {
  if (s.mode == RopeMode::none) return;
  const int32_t pairs = rotary_dim(s, head_dim) / 2;
  for (int32_t i = thread; i < pairs; i += threads) turns[i] = turns_of(s, head_dim, i);
}
__device__ __forceinline__ void block_fill_turns(const RopeSpec& s, int32_t head_dim, uint64_t* turns) {
  fill_turns(s, head_dim, turns, int32_t(threadIdx.x), int32_t(blockDim.x));
}

}  // namespace kvloom::block
