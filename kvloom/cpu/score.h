// The score stage: everything of a variant that stands between q.k and the weights. Kernels don't know variants; they call the one
// function of this type that suits the spec. A user's variant is another such function, compiled when it is first named (user_stage.inl).
#pragma once

#include "kvloom/base/math.h"
#include "kvloom/cpu/rows.h"

namespace kvloom::cpu {

/// Scores of some rows against consecutive list tokens of a group. Column j is list token `token_begin + j`.
struct ScoreTile {
  float* s;               // [row_count][stride] in: query_factor() * q.k, anything in dead columns. out: base-2 logits (sum: weights)
  int64_t stride;         // floats, >= columns
  const PackedRow* rows;  // [row_count]
  int32_t row_count;
  int32_t columns;
  int32_t live_begin;  // columns [live_begin, live_end) are keys of the chunk; the others are dead: -inf (sum: 0) comes out
  int32_t live_end;
  int32_t token_begin;  // list token of column 0; below 0 only if column 0 is dead
  int32_t kv_head;
  const RowGroup* group;
  const int32_t* key_pos;  // [columns] positions, where group->kv_position is not linear; else nullptr
};

// A ScoreStage applies the hooks and masks of a variant in place. Masked keys come out as -inf (sum: 0) whatever the score was, NaN
// included.

/// True if the stage of `spec` leaves kept scores as they are: log2(e) can then be folded into q.
KVLOOM_HD bool stage_keeps_scores(const VariantSpec& v) {
  return !v.alibi && !(v.soft_cap > 0.0f) && v.reduction == Reduction::softmax && !(v.user && v.user->logit);
}

/// True if a tile whose rows keep all of its columns by position may skip the stage.
KVLOOM_HD bool stage_only_masks(const VariantSpec& v) { return stage_keeps_scores(v) && !masks_by_code(v); }

/// What q must be multiplied by before the dot products: sm_scale, the q and k scales, and log2(e) where the stage keeps scores.
KVLOOM_HD float query_factor(const Job& job, int32_t kv_head) {
  const VariantParams& p = job.params->variant;
  const float k_scale = p.scale.k_per_head ? p.scale.k_per_head[kv_head] : p.scale.k;
  const float factor = p.sm_scale * p.scale.q * k_scale;
  return stage_keeps_scores(job.spec->variant) ? factor * kLog2e : factor;
}

/// What a finished row is multiplied by before it is stored.
KVLOOM_HD float value_factor(const Job& job, int32_t kv_head) {
  const ScaleParams& s = job.params->variant.scale;
  return s.v_per_head ? s.v_per_head[kv_head] : s.v;
}

}  // namespace kvloom::cpu
