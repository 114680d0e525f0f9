// Numbers for cases: the same on every platform and in every language, because a case is its seed. tests/cases/README.md states the rules.
#pragma once

#include "kvloom/base/mix.h"

#include <cstdint>
#include <initializer_list>

namespace kvloom::check {

/// What a value belongs to.
enum class Stream : uint64_t { q = 0, k = 1, v = 2, pages = 3, mask = 4, alibi = 5, sink = 6, scale = 7, tree = 8, lists = 9, user = 10 };

/// The random 64 bits number `i` of a stream of a case.
inline uint64_t stream_bits(uint64_t seed, Stream stream, uint64_t i) { return mix64(mix64(seed * 16 + uint64_t(stream)) + i); }

/// About normal, mean 0, standard deviation 1.155: the sum of four 16-bit fields, centred, over 2^15. Exact in fp32.
inline float stream_value(uint64_t seed, Stream stream, uint64_t i) {
  const uint64_t bits = stream_bits(seed, stream, i);
  const int32_t sum = int32_t(bits & 0xffff) + int32_t(bits >> 16 & 0xffff) + int32_t(bits >> 32 & 0xffff) + int32_t(bits >> 48);
  return float(sum - 131070) * (1.0f / 32768.0f);
}

/// A sequence of choices.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(mix64(seed)) {}
  uint64_t next() { return mix64(state_++); }
  /// 0 .. n-1
  int32_t below(int64_t n) { return int32_t(next() % uint64_t(n)); }
  /// low .. high
  int32_t between(int64_t low, int64_t high) { return int32_t(low + int64_t(next() % uint64_t(high - low + 1))); }
  bool percent(int32_t chance) { return below(100) < chance; }
  template <class T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[below(int64_t(choices.size()))];
  }

 private:
  uint64_t state_;
};

}  // namespace kvloom::check
