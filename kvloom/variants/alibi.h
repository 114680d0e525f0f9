// ALiBi (Press et al., arXiv 2108.12409): a bias that grows with the distance, one slope a q head. The slopes are the caller's: under
// tensor parallelism a rank's heads are not the first ones, so nothing can be derived from the head count.
#pragma once

#include "kvloom/contract/variant.h"

namespace kvloom::variants {

struct Alibi {
  template <class P>
  KVLOOM_HD static float logit(float score, const Coord& c, const P& p) {
    return score + p.alibi_slopes[c.q_head] * float(c.kv_pos - c.q_pos);
  }
};

}  // namespace kvloom::variants
