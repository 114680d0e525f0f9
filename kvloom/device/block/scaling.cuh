// What scores are multiplied by on their way to logits, and where: before hooks, or as the softmax goes.
#pragma once

#include "kvloom/device/block/scores.cuh"
#include "kvloom/device/block/softmax.cuh"

namespace kvloom::block {

/// What turns scores into logits.
struct Scaling {
  ScoreFactors by;
  float scale;  // of what warp_apply_variant leaves, to base 2
  float slack;  // kSlack / scale

  /// `score_factor`: what q.k is of the scores.
  template <class V, Form kForm>
  __device__ __forceinline__ static Scaling of(const VariantParams& p, int kv_head, float score_factor) {
    constexpr float kTiny = 1e-30f;
    const float k_scale = p.scale.k_per_head ? p.scale.k_per_head[kv_head] : p.scale.k;
    float factor = p.sm_scale * p.scale.q * k_scale * score_factor;
    if constexpr (has_weight<V>()) return {{factor, 1.0f}, 1.0f, kSlack};
    if constexpr (kForm == Form::squashed) {
      const float scale = V::bound(p) * kLog2e;
      return {{factor / V::bound(p), 1.0f}, scale, kSlack / scale};
    }
    if constexpr (kForm == Form::hooked && has_logit<V>()) return {{factor, 1.0f}, kLog2e, kSlack * kLn2};
    // The bias is divided by the factor: that is never 0, but so small that nothing is left of q.k.
    if (kForm == Form::biased && factor > -kTiny && factor < kTiny) factor = kTiny;
    const float scale = factor * kLog2e;
    if (scale > kTiny) return {{factor, 1.0f}, scale, kSlack / scale};
    return {{factor, scale}, 1.0f, kSlack};  // zero or negative: no good for folding
  }
};

}  // namespace kvloom::block
