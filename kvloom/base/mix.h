// One word of hash out of another, the same on every platform and on a GPU.
#pragma once

#include "kvloom/base/platform.h"

namespace kvloom {

/// SplitMix64's output at counter x (Steele, Lea, Flood 2014): every input bit changes about half of the output bits.
KVLOOM_HD constexpr uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace kvloom
