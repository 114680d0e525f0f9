// Random numbers by counter: the n-th of a stream is a function of (seed, n), so values need no state, no order and no storage.
#pragma once

#include "cli/replay/mix.h"

namespace kvloom::replay {

/// A stream of such numbers.
class Random {
 public:
  explicit Random(uint64_t seed) : seed_(mix64(seed)) {}
  uint64_t next() { return mix(seed_, counter_++); }
  /// Uniform in [0, bound), bound > 0 (the bias of the high product is below bound / 2^64).
  int64_t below(int64_t bound) { return int64_t((static_cast<unsigned __int128>(next()) * uint64_t(bound)) >> 64); }

 private:
  uint64_t seed_;
  uint64_t counter_ = 0;
};

}  // namespace kvloom::replay
