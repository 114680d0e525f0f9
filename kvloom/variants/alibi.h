// ALiBi (Press et al., arXiv 2108.12409): a bias that grows with the distance, one slope a q head. The slopes are the caller's: under
// tensor parallelism a rank's heads are not the first ones, so nothing can be derived from the head count.
#pragma once

#include "kvloom/contract/variant.h"

namespace kvloom::variants {

struct Alibi {
  template <class P>
  KVLOOM_HD static float logit(float score, const Coord& c, const P& p) {
    return score + slope(c, p) * float(c.kv_pos - c.q_pos);
  }
  /// By how much the bias grows a position: says that logit() is score + slope * (kv_pos - q_pos), which kernels may form in their own way.
  template <class P>
  KVLOOM_HD static float slope(const Coord& c, const P& p) { return p.alibi_slopes[c.q_head]; }
};

}  // namespace kvloom::variants
