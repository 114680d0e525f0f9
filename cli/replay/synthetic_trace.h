// A trace made from a seed with integer arithmetic alone: the same requests on every machine. It has what makes real traffic hard:
// lengths over two orders of magnitude, bursts, and families of requests that share a prompt prefix.
#pragma once

#include "cli/replay/trace.h"

namespace kvloom::replay {

struct SyntheticOptions {
  uint64_t seed = 1;
  int64_t requests = 96;
  int64_t median_prompt = 384;  // tokens; log-normal-like, from about a tenth to ten times this
  int64_t median_output = 64;
  int64_t requests_per_second = 8;
  int32_t shared_percent = 50;  // of the requests begin with one of `families` shared prefixes
  int32_t families = 4;
};

std::vector<TraceRequest> synthetic_trace(const SyntheticOptions& options);

}  // namespace kvloom::replay
