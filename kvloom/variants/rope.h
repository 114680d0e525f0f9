// Rotary position embedding applied as Q and K are loaded, each at its own position (contract/variant.h: RopeSpec). Angles are made in
// double on the host; `P` hands out their cosine and sine:  p.rope_cos(pos, pair), p.rope_sin(pos, pair).
#pragma once

#include "kvloom/contract/variant.h"

namespace kvloom::variants {

template <RopeMode kMode>
struct Rope {
  /// Element `dim` of a query that stands at c.q_pos; `partner` is the element that it is paired with.
  template <class P>
  KVLOOM_HD static float query(float x, float partner, int dim, const Coord& c, const P& p) {
    return rotate(x, partner, dim, c.q_pos, p);
  }
  template <class P>
  KVLOOM_HD static float key(float x, float partner, int dim, const Coord& c, const P& p) {
    return rotate(x, partner, dim, c.kv_pos, p);
  }

 private:
  template <class P>
  KVLOOM_HD static float rotate(float x, float partner, int dim, int32_t pos, const P& p) {
    const int half = p.rope.rotary_dim / 2;
    const bool first = kMode == RopeMode::interleaved ? (dim & 1) == 0 : dim < half;
    const int pair = kMode == RopeMode::interleaved ? dim / 2 : (first ? dim : dim - half);
    const float turned = partner * p.rope_sin(pos, pair);
    return x * p.rope_cos(pos, pair) + (first ? -turned : turned);
  }
};

}  // namespace kvloom::variants
