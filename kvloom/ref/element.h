// Rows of elements as doubles: the decode and the rotary embedding of REF.
#pragma once

#include "kvloom/base/dtype.h"
#include "kvloom/contract/variant.h"

#include <vector>

namespace kvloom::ref {

/// x[i] = element `offset + i` of an array of type `t`, i in [0, n).
void load_row(const void* data, DType t, int64_t offset, int32_t n, double* x);

/// Rotary embedding in double. Remembers the sines of recent positions: rows of one request ask for the same keys again and again.
class Rope {
 public:
  Rope(const RopeSpec& spec, int32_t head_dim);
  /// Rotates x [head_dim] as the vector of a token at `pos`. Nothing happens for RopeMode::none.
  void rotate(int32_t pos, double* x);

 private:
  const double* turn(int32_t pos);  // [pairs] cosines, then [pairs] sines

  RopeMode mode_;
  int32_t pairs_;
  std::vector<double> frequency_;  // [pairs] radians a position
  std::vector<int64_t> cached_;    // [slots] the position whose turn the slot holds; -2^62: none
  std::vector<double> turns_;      // [slots, 2 * pairs]
};

}  // namespace kvloom::ref
