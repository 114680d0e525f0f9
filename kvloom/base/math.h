// Small integer and float helpers that host, nvcc and NVRTC share.
#pragma once

#include "kvloom/base/platform.h"

namespace kvloom {

inline constexpr float kLog2e = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

template <class T>
KVLOOM_HD constexpr T min_of(T a, T b) { return b < a ? b : a; }
template <class T>
KVLOOM_HD constexpr T max_of(T a, T b) { return a < b ? b : a; }
template <class T>
KVLOOM_HD constexpr T clamp_to(T x, T low, T high) { return x < low ? low : (high < x ? high : x); }

/// ceil(a / b) for a >= 0, b > 0.
template <class T>
KVLOOM_HD constexpr T ceil_div(T a, T b) { return (a + b - 1) / b; }
/// The smallest multiple of b that is >= a, for a >= 0, b > 0.
template <class T>
KVLOOM_HD constexpr T round_up(T a, T b) { return ceil_div(a, b) * b; }

/// IEEE negative infinity: where the running maximum starts, and the LSE of the empty state.
KVLOOM_HD constexpr float neg_inf() { return __builtin_bit_cast(float, 0xff800000u); }

}  // namespace kvloom
