// Rows of 16-bit elements in shared memory, swizzled so that ldmatrix (8 rows of one 16-byte column) and cp.async (one row) are both free
// of bank conflicts: the 16-byte chunk c of row r stands at chunk c ^ (r % 8) of that row. Rows are padded to whole 128-byte lines.
#pragma once

#include "kvloom/base/math.h"

namespace kvloom::tile {

template <int kDim>
struct SwizzledRows {
  static constexpr int kChunks = kDim / 8;                              // 16-byte chunks that hold data
  static constexpr int kRowBytes = round_up(kDim * 2, 128);

  static constexpr int bytes(int rows) { return rows * kRowBytes; }

  /// Byte offset of chunk `chunk` of row `row`.
  __device__ __forceinline__ static uint32_t offset(int row, int chunk) {
    return uint32_t(row * kRowBytes + ((chunk ^ (row & 7)) << 4));
  }
};

/// One lane's view of a swizzled tile for ldmatrix: the lane always reads row `lane_row` (mod 8 fixed) and chunk parity `lane_chunk`, so
/// an address is one exclusive-or away from a base, and blocks of 8 rows are immediate offsets.
template <int kDim>
struct LaneRows {
  using Rows = SwizzledRows<kDim>;
  uint32_t base;   // shared address of the lane's row
  uint32_t mixed;  // 16 * (lane_chunk ^ lane_row % 8)

  __device__ __forceinline__ LaneRows(uint32_t tile, int row, int lane_row, int lane_chunk)
      : base(tile + uint32_t((row + lane_row) * Rows::kRowBytes)), mixed(uint32_t(lane_chunk ^ (lane_row & 7)) << 4) {}

  /// Chunk 2 * pair + lane_chunk of the lane's row, `rows8` blocks of 8 rows further.
  __device__ __forceinline__ uint32_t at(int rows8, int pair) const {
    return base + (mixed ^ uint32_t(pair << 5)) + uint32_t(rows8 * 8 * Rows::kRowBytes);
  }
};

}  // namespace kvloom::tile
