// Which keys a row keeps, by position (KeyRange) and by custom mask bit. The planner, every kernel and every test ask these functions.
#pragma once

#include "kvloom/base/math.h"
#include "kvloom/contract/variant.h"

namespace kvloom {

/// True if a row at q_pos keeps a key at kv_pos. `prefix`: the row's request keeps every key before this position.
KVLOOM_HD bool keeps(const KeyRange& r, int32_t prefix, int32_t q_pos, int32_t kv_pos) {
  if (kv_pos < prefix) return true;
  if (r.causal && kv_pos > q_pos) return false;
  if (r.left >= 0 && int64_t(kv_pos) < int64_t(q_pos) - r.left) return false;
  if (r.right >= 0 && int64_t(kv_pos) > int64_t(q_pos) + r.right) return false;
  return true;
}

/// Bit `row * columns + column` of a packed mask, little bit order, 64-bit offsets.
KVLOOM_HD bool mask_bit(const uint8_t* bits, int64_t row, int64_t columns, int64_t column) {
  const int64_t i = row * columns + column;
  return (bits[i >> 3] >> (i & 7)) & 1;
}

/// Positions [begin, end) that a row at q_pos can keep past its prefix. Keys before `prefix` are kept as well.
struct PositionRange {
  int64_t begin;
  int64_t end;
};
KVLOOM_HD PositionRange kept_positions(const KeyRange& r, int32_t q_pos) {
  PositionRange k{0, int64_t(1) << 40};
  if (r.left >= 0) k.begin = max_of<int64_t>(0, int64_t(q_pos) - r.left);
  if (r.causal) k.end = int64_t(q_pos) + 1;
  if (r.right >= 0) k.end = min_of<int64_t>(k.end, int64_t(q_pos) + r.right + 1);
  if (k.end < k.begin) k.end = k.begin;
  return k;
}

}  // namespace kvloom
