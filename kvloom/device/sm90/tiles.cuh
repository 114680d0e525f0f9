// Tiles in shared memory, as boxes are written and wgmma reads them: [rows / 8][dims / block][8 rows][block], a block 128, 64 or 32 bytes and
// swizzled as wide. One layout serves K (dims side by side) and V (transposed by wgmma), however the keys came there.
#pragma once

#include "kvloom/base/math.h"
#include "kvloom/device/ptx/math.cuh"
#include "kvloom/device/tile/swizzle.cuh"

namespace kvloom::sm90 {

/// The widest block that divides `dim` elements of 16 bits.
KVLOOM_HD constexpr int block_elements(int dim) { return dim % 64 == 0 ? 64 : dim % 32 == 0 ? 32 : 16; }

/// Matrix descriptor: where an operand begins, and bytes between its parts.
struct Descriptor {
  uint32_t start, shape;

  /// `kBlockBytes`: of the swizzle.
  template <int kBlockBytes>
  __device__ __forceinline__ static Descriptor of(uint32_t shared, int leading, int stride) {
    constexpr uint32_t kSwizzle = kBlockBytes == 128 ? 1 : kBlockBytes == 64 ? 2 : 3;
    return {(shared & 0x3ffff) >> 4 | uint32_t(leading >> 4) << 16, uint32_t(stride >> 4) | kSwizzle << 30};
  }
  /// Of what lies `bytes` further on.
  __device__ __forceinline__ Descriptor further(int bytes) const { return {start + uint32_t(bytes >> 4), shape}; }
  __device__ __forceinline__ uint64_t after(int bytes) const { return uint64_t(shape) << 32 | (start + uint32_t(bytes >> 4)); }
  /// Not known beforehand: the compiler would work out all that comes after it ahead of the loop, and run out of registers.
  __device__ __forceinline__ Descriptor kept() const { return {ptx::kept(start), shape}; }
};

/// Rows of K or V of kDim elements.
template <int kDim>
struct KvTile {
  using Rows = tile::BoxRows<kDim * 2>;
  static constexpr int kBlockBytes = Rows::kBlockBytes, kBlock = kBlockBytes / 2, kBlocks = kDim / kBlock;
  static constexpr int kBlockStride = Rows::kBlockStride, kGroupBytes = Rows::kGroupBytes;  // of 8 rows

  KVLOOM_HD static constexpr int bytes(int rows) { return Rows::bytes(rows); }
  KVLOOM_HD static constexpr uint32_t row(int r) { return uint32_t(r / 8 * kGroupBytes + r % 8 * kBlockBytes); }  // of its first block

  /// B of S = Q K^T: rows are columns of B. Step d, bytes: 16 dims.
  __device__ __forceinline__ static Descriptor keys(uint32_t tile) { return Descriptor::of<kBlockBytes>(tile, 0, kGroupBytes); }
  KVLOOM_HD static constexpr int key_step(int d) { return 16 * d / kBlock * kBlockStride + 16 * d % kBlock * 2; }
  /// B of O += P V: rows are rows of B. Step k, bytes: 16 rows.
  __device__ __forceinline__ static Descriptor values(uint32_t tile) { return Descriptor::of<kBlockBytes>(tile, kBlockStride, kGroupBytes); }
  KVLOOM_HD static constexpr int value_step(int k) { return 2 * k * kGroupBytes; }
};

/// Rows of Q of kDim elements, kRows of them: [dims / block][rows][block], swizzled.
template <int kDim, int kRows>
struct QueryTile {
  static constexpr int kBlock = block_elements(kDim), kBlockBytes = kBlock * 2, kChunks = kDim / 8, kBlockChunks = kBlock / 8;

  KVLOOM_HD static constexpr int bytes() { return kRows * kDim * 2; }
  /// Byte offset of 16-byte chunk `chunk` of a row.
  KVLOOM_HD static uint32_t offset(int row, int chunk) {
    const int swizzle = row / (128 / kBlockBytes) % kBlockChunks;
    return uint32_t(chunk / kBlockChunks * kRows * kBlockBytes + row * kBlockBytes + ((chunk % kBlockChunks ^ swizzle) << 4));
  }
  /// A of S = Q K^T, 64 rows from `row0` on.
  __device__ __forceinline__ static Descriptor rows(uint32_t tile, int row0) {
    return Descriptor::of<kBlockBytes>(tile + uint32_t(row0 * kBlockBytes), 0, 8 * kBlockBytes);
  }
  KVLOOM_HD static constexpr int step(int d) { return 16 * d / kBlock * kRows * kBlockBytes + 16 * d % kBlock * 2; }
};

}  // namespace kvloom::sm90
