// The algebra of attention states. A state of a row over a set of keys is (O, LSE): the softmax-weighted mean of V, and the natural
// log of the softmax denominator. Disjoint key sets merge exactly:
//   LSE = log(e^a + e^b),   O = (e^a O_a + e^b O_b) / (e^a + e^b)
// The empty set is (0, -inf), the identity. Everything that splits work (KV chunks, levels, GPUs) is put together by this merge, in a
// fixed order, so the same plan gives the same bits.
#pragma once

#include "kvloom/base/math.h"
#include "kvloom/contract/variant.h"

#if !defined(__CUDACC_RTC__)
#include <cmath>
#endif

namespace kvloom {

/// The factors that merge two states: O = a * O_a + b * O_b, and the LSE of the union.
struct MergeWeights {
  float a;
  float b;
  float lse;
};

/// Weights of the merge of states with LSE `lse_a` and `lse_b`. -inf is the identity on either side; both -inf give (0, 0, -inf), never
/// NaN. +inf (some engines' mark of an empty row) is taken for -inf; NaN stays NaN.
KVLOOM_HD MergeWeights merge_weights(float lse_a, float lse_b) {
  const float inf = -neg_inf();
  if (lse_a == inf) lse_a = neg_inf();
  if (lse_b == inf) lse_b = neg_inf();
  if (lse_b == neg_inf()) return {lse_a == neg_inf() ? 0.0f : 1.0f, 0.0f, lse_a};
  if (lse_a == neg_inf()) return {0.0f, 1.0f, lse_b};
  const float m = lse_a > lse_b ? lse_a : lse_b;
  const float ea = expf(lse_a - m);
  const float eb = expf(lse_b - m);
  const float sum = ea + eb;
  return {ea / sum, eb / sum, m + logf(sum)};
}

/// The factor that a sink applies to a finished row, and the row's LSE with it: the merge of (O, lse) with the state (0, sink).
KVLOOM_HD RowFinish sink_weights(float lse, float sink) {
  const MergeWeights w = merge_weights(lse, sink);
  return {w.a, w.lse};
}

}  // namespace kvloom
