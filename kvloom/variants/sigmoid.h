// Attention without a softmax (FlashSigmoid, arXiv 2409.04431): every key has the weight sigmoid(logit + bias) by itself, weights add up,
// and there is no LSE.
#pragma once

#include "kvloom/attn/exp.h"
#include "kvloom/contract/variant.h"

namespace kvloom::variants {

struct Sigmoid {
  static constexpr Reduction reduction = Reduction::sum;

  template <class P>
  KVLOOM_HD static float weight(float logit, const P& p) {
    return sigmoid_of(logit + p.sigmoid_bias);
  }
};

}  // namespace kvloom::variants
