// Hashing by which everything random in a replay follows from counters; the same on the host and on a GPU.
#pragma once

#include "kvloom/base/mix.h"

namespace kvloom::replay {

/// Of two words; not symmetric.
KVLOOM_HD uint64_t mix(uint64_t a, uint64_t b) { return mix64(mix64(a) ^ (b + 0x632be59bd9b4e019u)); }

}  // namespace kvloom::replay
