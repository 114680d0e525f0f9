// REF: the definition of the right answer, in double precision, one row at a time, from the batch as the caller described it. It knows
// nothing of plans, tiles, levels or merges, and includes nothing of kvloom but base/ and contract/.
//   s_ij = sm_scale * q_scale * k_scale * (rope(q_i) . rope(k_j)); + alibi slope * (kv_pos - q_pos); soft cap c: c * tanh(s / c)
//   kept: KeyRange and prefix by position, and the custom mask bit
//   softmax: lse_i = ln(sum_kept exp(s)), with a sink ln(sum + exp(sink)); o_i = sum exp(s - lse) * v_scale * v_j
//   sum:     o_i = sum_kept sigmoid(s + bias) * v_scale * v_j; lse = 0
//   a row that keeps nothing: o = 0, lse = -inf (with a sink: lse = sink)
// A user's variant comes on top, by its plain hooks one pair at a time (they compute in fp32, everything around them in double):
//   s_ij = logit(s_ij); kept: range and keep(...) too; sum: weight(s) instead of the sigmoid; (o_i, lse_i) = finish(lse_i) at the end
#pragma once

#include "kvloom/base/span.h"
#include "kvloom/contract/batch.h"
#include "kvloom/contract/params.h"
#include "kvloom/contract/spec.h"
#include "kvloom/contract/user_variant.h"
#include "kvloom/ref/rounding.h"

namespace kvloom::ref {

struct Row {
  int32_t token;  // row of Q
  int32_t q_head;
};

/// o [rows.size, head_dim_vo], lse [rows.size]. All pointers are host memory. With explicit groups a row's keys are the union of the
/// groups that name its token.
///
/// Values come from `spec` (sm_scale, key range, soft cap, sigmoid bias, RoPE: what the caller asked for), so parameters wrongly derived
/// from a spec show up as wrong results; `params` gives the tensors, the per-head arrays (slopes, sinks, mask), the scales and
/// `bare_state`. Page ids are batch.pages (params.pages where the batch has none). Only keys that a row keeps are read, and only their
/// page ids. A malformed batch is undefined behaviour: validating is the planner's duty. A user's parameters: params.variant.user.
/// `spread` (optional) [rows.size]: how far a logit (sum: a weight, relative to the row's largest) moves where a score moves by its
/// rounding in fp32, at most, and by the hook's own rounding; only a user's hooks are looked at.
/// `rounding` (optional) [rows.size]: where RoPE is fused, what rounding turned Q and K to the type of Q moves the row by; else it stays as it is.
void attend_rows(const AttentionSpec& spec, const Batch& batch, const AttendParams& params, Span<const Row> rows, double* o, double* lse,
                 double* spread = nullptr, Rounding* rounding = nullptr);

}  // namespace kvloom::ref
