// The online softmax step that every kernel shares. Compiled once a target.
#pragma once
#include "kvloom/cpu/microkernel.inl"

namespace kvloom::cpu::KVLOOM_TARGET {

/// The lanes of the result hold the largest of columns [0, n) of a row.
KVLOOM_SIMD Vec largest_of(const float* s, int32_t n) {
  Vec m0 = load(s), m1 = load(s + kLanes);
  for (int32_t j = kPanel; j < n; j += kPanel) {
    m0 = max(m0, load(s + j));
    m1 = max(m1, load(s + j + kLanes));
  }
  return max(m0, m1);
}

/// Columns [0, n) of a row become 2^(s - base); the lanes of the result add up to their sum.
KVLOOM_SIMD Vec weigh_row(float* s, int32_t n, float base) {
  const Vec shift = set(base);
  Vec sum0 = set(0.0f), sum1 = set(0.0f);
  for (int32_t j = 0; j < n; j += kPanel) {
    const Vec a = exp2(sub(load(s + j), shift)), b = exp2(sub(load(s + j + kLanes), shift));
    sum0 = add(sum0, a);
    sum1 = add(sum1, b);
    store(s + j, a);
    store(s + j + kLanes, b);
  }
  return add(sum0, sum1);
}

/// One step of the online softmax for rows [0, rows) of s, at most four, over columns [0, n), n a multiple of kPanel: s becomes weights.
/// Four rows at a time, because what crosses lanes costs as much for four as for one; a row's bits do not depend on the rows beside it.
KVLOOM_SIMD void softmax_rows(float* s, int64_t stride, int32_t rows, int32_t n, float* row_max, float* row_sum, float* rescale) {
  static_assert(kLanes >= 4);
  const auto row = [&](int32_t i) __attribute__((always_inline)) { return s + min_of(i, rows - 1) * stride; };
  float top[4], base[4], sum[4];
  float moved[kLanes] = {};
  max_lanes_of_four(largest_of(row(0), n), largest_of(row(1), n), largest_of(row(2), n), largest_of(row(3), n), top);
  for (int32_t i = 0; i < rows; ++i) {
    const float after = max_of(row_max[i], top[i]);
    base[i] = after == neg_inf() ? 0.0f : after;  // a row that has kept nothing yet
    moved[i] = row_max[i] - base[i];
    row_max[i] = after;
  }
  store(moved, exp2(load(moved)));
  Vec lanes[4] = {set(0.0f), set(0.0f), set(0.0f), set(0.0f)};
  for (int32_t i = 0; i < rows; ++i) lanes[i] = weigh_row(s + i * stride, n, base[i]);
  sum_lanes_of_four(lanes[0], lanes[1], lanes[2], lanes[3], sum);
  for (int32_t i = 0; i < rows; ++i) {
    rescale[i] = moved[i];
    row_sum[i] = row_sum[i] * moved[i] + sum[i];
  }
}

/// softmax_rows for any number of rows.
KVLOOM_SIMD void softmax_all_rows(float* s, int64_t stride, int32_t rows, int32_t n, float* row_max, float* row_sum, float* rescale) {
  for (int32_t i = 0; i < rows; i += 4) softmax_rows(s + i * stride, stride, min_of(4, rows - i), n, row_max + i, row_sum + i, rescale + i);
}

}  // namespace kvloom::cpu::KVLOOM_TARGET
