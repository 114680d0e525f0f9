// The online softmax step that every kernel shares. Compiled once a target.
#pragma once
#include "kvloom/cpu/microkernel.inl"

namespace kvloom::cpu::KVLOOM_TARGET {

/// One row's step of the online softmax over columns [0, n) of s, n a multiple of kPanel: s becomes weights.
KVLOOM_SIMD void softmax_row(float* s, int32_t n, float& row_max, float& row_sum, float& rescale) {
  Vec m0 = load(s), m1 = load(s + kLanes);
  for (int32_t j = kPanel; j < n; j += kPanel) {
    m0 = max(m0, load(s + j));
    m1 = max(m1, load(s + j + kLanes));
  }
  const float before = row_max;
  const float after = max_of(before, max_lane(max(m0, m1)));
  const float base = after == neg_inf() ? 0.0f : after;  // a row that has kept nothing yet
  const Vec shift = set(base);
  Vec sum0 = set(0.0f), sum1 = set(0.0f);
  for (int32_t j = 0; j < n; j += kPanel) {
    const Vec a = exp2(sub(load(s + j), shift)), b = exp2(sub(load(s + j + kLanes), shift));
    sum0 = add(sum0, a);
    sum1 = add(sum1, b);
    store(s + j, a);
    store(s + j + kLanes, b);
  }
  rescale = exp2_of(before - base);
  row_max = after;
  row_sum = row_sum * rescale + sum_lanes(add(sum0, sum1));
}

}  // namespace kvloom::cpu::KVLOOM_TARGET
