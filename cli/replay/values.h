// Seeded values for Q, K and V, made at the speed of a copy: a block of random elements, of which a row is a piece at a hashed offset. The
// hash takes in what the row is (content number, layer, head, Q, K or V), so equal prefixes hold equal data and other rows do not.
#pragma once

#include "cli/replay/random.h"
#include "kvloom/base/dtype.h"

#include <vector>

namespace kvloom::replay {

class Values {
 public:
  /// Roughly normal with standard deviation `gain`. Rows are at most kMaxRow elements.
  Values(DType dtype, uint64_t seed, float gain);

  /// `elements` values that belong to `hash`.
  const void* row(uint64_t hash) const {
    const uint64_t piece = (hash >> 32) % kPieces;
    return data_.data() + piece * kStep * uint64_t(size_);
  }
  DType dtype() const { return dtype_; }

  static constexpr int64_t kMaxRow = 1024;

 private:
  static constexpr uint64_t kStep = 16;  // elements between pieces
  static constexpr uint64_t kPieces = 1 << 16;

  DType dtype_;
  int size_;  // bytes of an element
  std::vector<char> data_;
};

}  // namespace kvloom::replay
