// Attention sinks as a learned logit a head (gpt-oss): the softmax denominator gains exp(sink), no value is added. It is the merge with
// the state (0, sink), done once by whoever writes the final row.
#pragma once

#include "kvloom/attn/state.h"
#include "kvloom/contract/variant.h"

namespace kvloom::variants {

struct Sink {
  template <class P>
  KVLOOM_HD static RowFinish finish(float lse, int32_t q_head, const P& p) {
    return sink_weights(lse, p.sink[q_head]);
  }
};

}  // namespace kvloom::variants
