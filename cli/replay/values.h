// Seeded values for Q, K and V, made at the speed of a copy: a table of random elements, of which a row is a piece (pieces.h). The hash of
// the piece takes in what the row is (content number, layer, head, Q, K or V), so equal prefixes hold equal data and other rows do not.
#pragma once

#include "cli/replay/pieces.h"
#include "kvloom/base/dtype.h"
#include "kvloom/contract/params.h"

#include <vector>

namespace kvloom::replay {

class Values {
 public:
  /// Roughly normal with standard deviation `gain`. Rows are at most kMaxRow elements.
  Values(DType dtype, uint64_t seed, float gain);

  /// The values of a piece: as many as a row has.
  const void* row(uint64_t piece) const { return data_.data() + int64_t(piece) * kPieceStep * size_; }
  const std::vector<char>& data() const { return data_; }
  DType dtype() const { return dtype_; }

  static constexpr int64_t kMaxRow = 1024;

 private:
  DType dtype_;
  int size_;  // bytes of an element
  std::vector<char> data_;
};

/// How the values of K and V are made and stored: fp8 pools hold values times 4.
struct KvValues {
  uint64_t seed = 0;
  float gain = 1.0f;
  /// What a stored element stands for.
  ScaleParams scale() const;
};
KvValues kv_values(DType dtype, uint64_t seed);
/// Seed of the values of Q.
inline uint64_t q_seed(uint64_t seed) { return mix(seed, kQSalt); }

}  // namespace kvloom::replay
