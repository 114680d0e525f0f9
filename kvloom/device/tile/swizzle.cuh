// Rows in shared memory, swizzled so that ldmatrix (8 rows of one 16-byte column) and cp.async (one row) are both free of bank
// conflicts: the 16-byte chunk c of row r stands at chunk c ^ (r % 8) of that row. Rows are padded to whole 128-byte lines.
#pragma once

#include "kvloom/base/math.h"

namespace kvloom::tile {

/// Rows of kBytes bytes of data, a multiple of 16.
template <int kBytes>
struct SwizzledRows {
  static constexpr int kChunks = kBytes / 16;
  static constexpr int kRowBytes = round_up(kBytes, 128);

  KVLOOM_HD static constexpr int bytes(int rows) { return rows * kRowBytes; }

  /// Byte offset of chunk `chunk` of row `row`.
  KVLOOM_HD static uint32_t offset(int row, int chunk) { return uint32_t(row * kRowBytes + ((chunk ^ (row & 7)) << 4)); }
};

/// One lane's view of a swizzled tile for ldmatrix: the lane always reads row `lane_row` of every 8 (or 16), and chunks `lane_chunk` away
/// (0 or 1) from even ones. An address is one of eight exclusive-ors away from a base; lines and blocks of rows are immediate offsets.
template <class Rows>
struct LaneRows {
  uint32_t base;   // shared address of the lane's row
  uint32_t mixed;  // 16 * (lane_chunk ^ lane_row % 8)

  __device__ __forceinline__ LaneRows(uint32_t tile, int row, int lane_row, int lane_chunk)
      : base(tile + uint32_t((row + lane_row) * Rows::kRowBytes)), mixed(uint32_t(lane_chunk ^ (lane_row & 7)) << 4) {}

  /// Chunk `chunk` + lane_chunk of the lane's row, `rows8` blocks of 8 rows further; `chunk` even where lane_chunk may be 1.
  __device__ __forceinline__ uint32_t at(int rows8, int chunk) const {
    return base + (mixed ^ uint32_t((chunk & 7) << 4)) + uint32_t((chunk >> 3) * 128 + rows8 * 8 * Rows::kRowBytes);
  }
};

}  // namespace kvloom::tile
