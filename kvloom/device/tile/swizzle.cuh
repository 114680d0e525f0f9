// Rows in shared memory, swizzled so that ldmatrix (8 rows of one 16-byte column) and cp.async (one row) are both free of bank
// conflicts: the 16-byte chunk c of row r stands at chunk c ^ (r % 8) of that row. Rows are padded to whole 128-byte lines.
#pragma once

#include "kvloom/base/math.h"

namespace kvloom::tile {

/// Rows of kBytes bytes of data, a multiple of 16, one after the other.
template <int kBytes>
struct SwizzledRows {
  static constexpr int kChunks = kBytes / 16;
  static constexpr int kRowBytes = round_up(kBytes, 128);
  // A block of a row is what a swizzle stays within; bytes from one to the next, and of 8 rows.
  static constexpr int kBlockChunks = 8, kBlockStride = 128, kGroupBytes = 8 * kRowBytes;

  KVLOOM_HD static constexpr int bytes(int rows) { return rows * kRowBytes; }

  /// Byte offset of chunk `chunk` of row `row`.
  KVLOOM_HD static uint32_t offset(int row, int chunk) { return uint32_t(row * kRowBytes + ((chunk ^ (row & 7)) << 4)); }
  /// Of chunk `lane_chunk` of row `row` + lane_row; `row`: a multiple of 8.
  KVLOOM_HD static uint32_t lane_offset(int row, int lane_row, int lane_chunk) {
    return uint32_t((row + lane_row) * kRowBytes + ((lane_chunk ^ (lane_row & 7)) << 4));
  }
};

/// Rows as a box of the tensor memory accelerator lies there: [rows / 8][kBytes / block][8 rows][block], a block 128, 64 or 32 bytes, swizzled as wide.
template <int kBytes>
struct BoxRows {
  static constexpr int kChunks = kBytes / 16;
  static constexpr int kBlockBytes = kBytes % 128 == 0 ? 128 : kBytes % 64 == 0 ? 64 : 32;
  static constexpr int kBlockChunks = kBlockBytes / 16, kBlockStride = 8 * kBlockBytes, kGroupBytes = 8 * kBytes;
  static_assert(kBytes % 32 == 0);

  KVLOOM_HD static constexpr int bytes(int rows) { return rows * kBytes; }
  KVLOOM_HD static uint32_t offset(int row, int chunk) {
    return uint32_t(row / 8 * kGroupBytes + chunk / kBlockChunks * kBlockStride + row % 8 * kBlockBytes + ((chunk % kBlockChunks ^ swizzle(row)) << 4));
  }
  KVLOOM_HD static uint32_t lane_offset(int row, int lane_row, int lane_chunk) { return offset(row + lane_row, lane_chunk); }

 private:
  KVLOOM_HD static int swizzle(int row) { return row / (128 / kBlockBytes) % kBlockChunks; }
};

/// One lane's view of swizzled tiles for ldmatrix: the lane always reads row `lane_row` of every 8 (or 16), and chunks `lane_chunk` away (0 or 1)
/// from even ones. Tiles begin at multiples of 128 bytes, so the swizzle stands in bits of its own, and everything about the lane is one number.
template <class Rows>
struct LaneRows {
  uint32_t address;  // shared: the lane's row of the tile, and its swizzle

  KVLOOM_HD static uint32_t offset(int row, int lane_row, int lane_chunk) { return Rows::lane_offset(row, lane_row, lane_chunk); }

  /// Chunk `chunk` + lane_chunk of the lane's row, `rows8` blocks of 8 rows further; `chunk` even where lane_chunk may be 1.
  KVLOOM_HD uint32_t at(int rows8, int chunk) const {
    return (address ^ uint32_t(chunk % Rows::kBlockChunks << 4)) + uint32_t(chunk / Rows::kBlockChunks * Rows::kBlockStride + rows8 * Rows::kGroupBytes);
  }
};

}  // namespace kvloom::tile
