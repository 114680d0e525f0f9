// Soft cap (Gemma 2, Grok): logits are squeezed into (-soft_cap, soft_cap), after the scale and any bias, before any mask.
#pragma once

#include "kvloom/attn/exp.h"
#include "kvloom/contract/variant.h"

namespace kvloom::variants {

struct SoftCap {
  template <class P>
  KVLOOM_HD static float logit(float score, const Coord&, const P& p) {
    return p.soft_cap * tanh_of(score * (1.0f / p.soft_cap));
  }
};

}  // namespace kvloom::variants
