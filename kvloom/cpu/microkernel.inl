// The two inner loops of the tile kernel: a register tile of a matrix product, and exp2 of a vector. Compiled once a target.
#pragma once
#include "kvloom/attn/exp.h"

namespace kvloom::cpu::KVLOOM_TARGET {

/// Columns of a register tile: keys of a K panel, dims of a V panel.
inline constexpr int kPanel = kMicroVecs * kLanes;

/// 2^t for t <= 0; accuracy and limits as exp2_of (attn/exp.h), with fused steps. NaN stays NaN: it is the second operand of max.
KVLOOM_SIMD Vec exp2(Vec t) {
  t = max(set(-127.0f), t);
  const Vec shifted = add(t, set(kRoundShift));
  const Vec f = sub(t, sub(shifted, set(kRoundShift)));
  Vec p = fma(set(kExp2C6), f, set(kExp2C5));
  p = fma(p, f, set(kExp2C4));
  p = fma(p, f, set(kExp2C3));
  p = fma(p, f, set(kExp2C2));
  p = fma(p, f, set(kExp2C1));
  p = fma(p, f, set(1.0f));
  return add_exponent(p, shifted);
}

/// What becomes of c before a product is in it.
enum class Into {
  fresh,    // nothing: c = a b
  sum,      // it is added at the end: c = c + (a b), so that a long sum is one of shorter ones, each rounded by itself
  rescale,  // it comes first: c = scale[i] c, and the products on top
};

/// c [kMicroRows][kPanel] and a [kMicroRows][depth] * b [depth][kPanel], as kInto says; `scale` for rescale only.
/// Rows of a are a_row floats apart, rows of c c_row, rows of b adjoin. depth is a multiple of 4. Never inlined: its registers must not
/// depend on what stands around it (tests/cpu/inner_loop.py looks at the result).
template <Into kInto>
__attribute__((noinline)) static void product(int32_t depth, const float* a, int64_t a_row, const float* b, float* c, int64_t c_row,
                                              const float* scale) {
  Vec acc[kMicroRows][kMicroVecs];
#pragma GCC unroll 16
  for (int i = 0; i < kMicroRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kMicroVecs; ++j)
      acc[i][j] = kInto == Into::rescale ? mul(load(c + i * c_row + j * kLanes), set(scale[i])) : set(0.0f);
  }
  for (int32_t k = 0; k < depth; k += 4) {
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) {
      Vec row[kMicroVecs];
#pragma GCC unroll 4
      for (int j = 0; j < kMicroVecs; ++j) row[j] = load(b + int64_t(k + u) * kPanel + j * kLanes);
#pragma GCC unroll 16
      for (int i = 0; i < kMicroRows; ++i) {
        const Vec x = set(a[i * a_row + k + u]);
#pragma GCC unroll 4
        for (int j = 0; j < kMicroVecs; ++j) acc[i][j] = accumulate(acc[i][j], x, row[j]);
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kMicroRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kMicroVecs; ++j) {
      float* const to = c + i * c_row + j * kLanes;
      store(to, kInto == Into::sum ? add(load(to), acc[i][j]) : acc[i][j]);
    }
  }
}

}  // namespace kvloom::cpu::KVLOOM_TARGET
