#include "cli/replay/values.h"

namespace kvloom::replay {

Values::Values(DType dtype, uint64_t seed, float gain) : dtype_(dtype), size_(size_of(dtype)) {
  const int64_t elements = int64_t(kPieces) * kPieceStep + kMaxRow;
  data_.resize(size_t(elements * size_));
  for (int64_t i = 0; i < elements; ++i) {
    // Four 16-bit uniforms of one word: variance 4 * 2^32 / 12.
    const uint64_t word = mix(seed, uint64_t(i));
    const int64_t sum = int64_t(word & 0xffff) + int64_t((word >> 16) & 0xffff) + int64_t((word >> 32) & 0xffff) + int64_t(word >> 48);
    constexpr float kUnit = 2.6428e-5f;  // sqrt(3) / 2^16
    store_from_float(data_.data(), dtype, i, float(sum - 131070) * kUnit * gain);
  }
}

ScaleParams KvValues::scale() const {
  ScaleParams s;
  s.k = s.v = 1.0f / gain;
  return s;
}

KvValues kv_values(DType dtype, uint64_t seed) { return {mix(seed, 0x6b76), is_fp8(dtype) ? 4.0f : 1.0f}; }

}  // namespace kvloom::replay
