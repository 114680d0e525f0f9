// Soft cap (Gemma 2, Grok): logits are squeezed into (-soft_cap, soft_cap), after the scale and any bias, before any mask.
#pragma once

#include "kvloom/attn/exp.h"
#include "kvloom/contract/variant.h"

namespace kvloom::variants {

struct SoftCap {
  template <class P>
  KVLOOM_HD static float logit(float score, const Coord&, const P& p) {
    return bound(p) * squash(score * (1.0f / bound(p)));
  }

  /// Says that logit() is bound * squash(score / bound), and a score cheaper to squash where |score| <= kNear * bound: kernels may do so
  /// for a tile of such scores, and multiply by the bound where they multiply anyway.
  template <class P>
  KVLOOM_HD static float bound(const P& p) {
    return p.soft_cap;
  }
  KVLOOM_HD static float squash(float x) { return tanh_of(x); }
  KVLOOM_HD static float squash_near(float x) { return tanh_near(x); }
  static constexpr float kNear = kTanhNear;
};

}  // namespace kvloom::variants
