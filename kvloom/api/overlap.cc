// Do two strided views share memory? Exact for boxes of the same nesting (columns of a fused QKV matrix, K beside V within a head's slot),
// and safe for all: a pair that can't be told apart counts as sharing.
#include "kvloom/api/tensor_check.h"
#include "kvloom/base/math.h"
#include "kvloom/support/check.h"

#include <cstdlib>

namespace kvloom::api {
namespace {

using Wide = __int128;

/// A view as nested steps, the longest first: `count[d]` copies of the rest, `pitch[d]` bytes apart, from `low`, its lowest byte.
struct Box {
  Wide low = 0;
  int32_t dims = 0;
  Wide pitch[4] = {};
  Wide count[4] = {};
  Wide size = 0;  // bytes of an element

  /// Bytes from the first to the last of the steps from `d` on.
  Wide reach(int32_t d) const {
    Wide bytes = size;
    for (; d < dims; ++d) bytes += (count[d] - 1) * pitch[d];
    return bytes;
  }
};

Box box_of(const Tensor& t) {
  Box b;
  b.low = Wide(reinterpret_cast<uintptr_t>(t.data));
  b.size = size_of(t.dtype);
  for (int32_t d = 0; d < t.ndim; ++d) {
    const Wide step = Wide(stride_of(t, d)) * b.size;
    if (step < 0) b.low += step * (t.shape[d] - 1);
    if (step == 0) continue;
    int32_t at = b.dims++;
    for (; at > 0 && b.pitch[at - 1] < (step < 0 ? -step : step); --at) {
      b.pitch[at] = b.pitch[at - 1];
      b.count[at] = b.count[at - 1];
    }
    b.pitch[at] = step < 0 ? -step : step;
    b.count[at] = t.shape[d];
  }
  return b;
}

/// True if steps [da, ..) of `a` at 0 and steps [db, ..) of `b` at `delta` share no byte.
bool apart(const Box& a, int32_t da, const Box& b, int32_t db, Wide delta) {
  if (a.reach(da) <= delta || delta + b.reach(db) <= 0) return true;
  if (da == a.dims || db == b.dims || a.pitch[da] != b.pitch[db]) return false;
  const Wide pitch = a.pitch[da], inner_a = a.reach(da + 1), inner_b = b.reach(db + 1);
  if (inner_a > pitch || inner_b > pitch) return false;
  // Copies of one that lie near a copy of the other: at most three shifts, whatever the counts.
  const Wide nearest = -(delta / pitch) * pitch;
  for (Wide shift = nearest - 2 * pitch; shift <= nearest + 2 * pitch; shift += pitch) {
    if (!apart(a, da + 1, b, db + 1, delta + shift)) return false;
  }
  return true;
}

/// Bytes [low, high) from the first element to the last.
struct Extent {
  Wide low, high;
};

Extent extent_of(const Tensor& t) {
  int64_t below = 0, above = 0;  // in elements; check_tensor has found that they stay below 2^62 bytes
  for (int32_t d = 0; d < t.ndim; ++d) {
    const int64_t reach = (t.shape[d] - 1) * stride_of(t, d);
    (reach < 0 ? below : above) += reach;
  }
  const Wide at = Wide(reinterpret_cast<uintptr_t>(t.data));
  const int64_t size = size_of(t.dtype);
  return {at + below * size, at + (above + 1) * size};
}

bool has_elements(const Tensor& t) {
  for (int32_t d = 0; d < t.ndim; ++d) {
    if (t.shape[d] <= 0) return false;
  }
  return t.ndim > 0;
}

}  // namespace

void check_disjoint(const Tensor& a, const char* a_name, const Tensor& b, const char* b_name, const char* where) {
  if (!has_elements(a) || !has_elements(b)) return;
  const Extent extent_a = extent_of(a), extent_b = extent_of(b);
  if (extent_a.high <= extent_b.low || extent_b.high <= extent_a.low) [[likely]]
    return;
  const Box box_a = box_of(a), box_b = box_of(b);
  require(apart(box_a, 0, box_b, 0, box_b.low - box_a.low),
          "{}: {}: got memory that overlaps {}, wanted memory of its own; {} is read while "
          "{} is written",
          where, a_name, b_name, b_name, a_name);
}

}  // namespace kvloom::api
