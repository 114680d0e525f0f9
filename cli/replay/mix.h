// Hashing by which everything random in a replay follows from counters; the same on the host and on a GPU.
#pragma once

#include "kvloom/base/platform.h"

namespace kvloom::replay {

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): every input bit changes about half of the output bits.
KVLOOM_HD uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
/// Of two words; not symmetric.
KVLOOM_HD uint64_t mix(uint64_t a, uint64_t b) { return mix(mix(a) ^ (b + 0x632be59bd9b4e019u)); }

}  // namespace kvloom::replay
