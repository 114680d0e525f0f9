// Random numbers by counter: the n-th of a stream is a function of (seed, n), so values need no state, no order and no storage.
#pragma once

#include <cstdint>

namespace kvloom::replay {

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): every input bit changes about half of the output bits.
inline uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
/// Of two words; not symmetric.
inline uint64_t mix(uint64_t a, uint64_t b) { return mix(mix(a) ^ (b + 0x632be59bd9b4e019u)); }

/// A stream of such numbers.
class Random {
 public:
  explicit Random(uint64_t seed) : seed_(mix(seed)) {}
  uint64_t next() { return mix(seed_, counter_++); }
  /// Uniform in [0, bound), bound > 0 (the bias of the high product is below bound / 2^64).
  int64_t below(int64_t bound) { return int64_t((static_cast<unsigned __int128>(next()) * uint64_t(bound)) >> 64); }

 private:
  uint64_t seed_;
  uint64_t counter_ = 0;
};

}  // namespace kvloom::replay
