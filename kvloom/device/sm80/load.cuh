// Rows of Q, K and V from wherever they lie into swizzled shared memory, 16 bytes a copy. Where a key's rows lie is worked out once a key, by
// one thread; the copying threads read it from shared memory, so page_size 1 costs what page_size 64 costs.
#pragma once

#include "kvloom/device/block/key_list.cuh"
#include "kvloom/device/block/tile_walk.cuh"
#include "kvloom/device/ptx/cp_async.cuh"
#include "kvloom/device/sm80/shared.cuh"

namespace kvloom::sm80 {

template <AttendConfig C>
__device__ __forceinline__ KeyPlace place_of(const AttendArgs& args, const RowGroup& group, int kv_head, int32_t j, int64_t page) {
  const KvView& kv = args.params.kv;
  const int64_t in_page = block::KeySlot<C.paged>(args, group, j).in_page;
  constexpr int kSize = size_of(C.kv_dtype);
  return {static_cast<const char*>(kv.k) + (page * kv.k_page + in_page * kv.k_token + kv_head * kv.k_head) * kSize,
          static_cast<const char*>(kv.v) + (page * kv.v_page + in_page * kv.v_token + kv_head * kv.v_head) * kSize};
}

/// The 16-byte copies of kRows rows that fall to this lane of a warp: it keeps to one chunk of a row where chunks divide 32.
template <class Layout, int kRows>
struct WarpCopies {
  static constexpr int kCount = ceil_div(kRows * Layout::kChunks, 32);
  static constexpr bool kOneChunk = 32 % Layout::kChunks == 0;
  static constexpr int kRowStep = kOneChunk ? 32 / Layout::kChunks : 1;
  const int lane = int(threadIdx.x) & 31;

  __device__ __forceinline__ int row(int i) const { return kOneChunk ? lane / Layout::kChunks + i * kRowStep : (i * 32 + lane) / Layout::kChunks; }
  __device__ __forceinline__ int chunk(int i) const { return kOneChunk ? lane % Layout::kChunks : (i * 32 + lane) % Layout::kChunks; }
  /// The last copy of some lanes may lie past the rows.
  __device__ __forceinline__ bool there(int i) const { return kRows * Layout::kChunks % 32 == 0 || row(i) < kRows; }
};

/// Both addresses of a place in one load.
__device__ __forceinline__ KeyPlace read_place(const KeyPlace* place) {
  const uint4 w = *reinterpret_cast<const uint4*>(place);
  return {reinterpret_cast<const char*>(uint64_t(w.y) << 32 | w.x), reinterpret_cast<const char*>(uint64_t(w.w) << 32 | w.z)};
}

/// kRows rows of a tile of K and V by one warp, from row `row0` on, all copies at once: spread among the products they would be fences that
/// ldmatrix can't be moved across. `place`: of these rows; `k`, `v`: shared addresses of the tile. Keys without a place become zeros.
template <AttendConfig C, int kRows = C.copy_rows()>
__device__ __forceinline__ void warp_load_rows(const KeyPlace* place, int row0, uint32_t k, uint32_t v) {
  if constexpr (KRows<C>::kChunks == VRows<C>::kChunks) {  // one look at a place serves both
    const WarpCopies<KRows<C>, kRows> copies;
    constexpr int kTogether = 4;
#pragma unroll(copies.kCount <= 8 ? 8 : 1)
    for (int i0 = 0; i0 < copies.kCount; i0 += kTogether) {
      KeyPlace from[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (i0 + i < copies.kCount && copies.there(i0 + i)) from[i] = read_place(place + copies.row(i0 + i));
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (i0 + i >= copies.kCount || !copies.there(i0 + i)) continue;
        const uint32_t bytes = from[i].k != nullptr ? 16 : 0, to = KRows<C>::offset(row0 + copies.row(i0 + i), copies.chunk(i0 + i));
        ptx::cp_async_16(k + to, from[i].k + copies.chunk(i0 + i) * 16, bytes);
        ptx::cp_async_16(v + to, from[i].v + copies.chunk(i0 + i) * 16, bytes);
      }
    }
  } else {
    const WarpCopies<KRows<C>, kRows> kc;
    const WarpCopies<VRows<C>, kRows> vc;
#pragma unroll 4
    for (int i = 0; i < kc.kCount; ++i) {
      if (!kc.there(i)) continue;
      const KeyPlace from = read_place(place + kc.row(i));
      ptx::cp_async_16(k + KRows<C>::offset(row0 + kc.row(i), kc.chunk(i)), from.k + kc.chunk(i) * 16, from.k != nullptr ? 16 : 0);
    }
#pragma unroll 4
    for (int i = 0; i < vc.kCount; ++i) {
      if (!vc.there(i)) continue;
      const KeyPlace from = read_place(place + vc.row(i));
      ptx::cp_async_16(v + VRows<C>::offset(row0 + vc.row(i), vc.chunk(i)), from.v + vc.chunk(i) * 16, from.k != nullptr ? 16 : 0);
    }
  }
}

/// Copies the item's query rows; rows that are not there become zeros. A warp copies its own, where it has some, and a lane knows where one of them lies.
template <AttendConfig C>
__device__ __forceinline__ void block_load_queries(const AttendArgs& args, const block::PackedRow* rows, char* tile) {
  using Layout = QRows<C>;
  const char* base = static_cast<const char*>(args.params.q);
  const uint32_t shared = ptx::shared_address(tile);
  if constexpr (C.warps_kv == 1 && C.row_tiles() <= 2) {
    constexpr int kRows = 16 * C.row_tiles(), kCopies = kRows * Layout::kChunks / 32;
    const int lane = int(threadIdx.x) & 31, row0 = (int(threadIdx.x) >> 5) * kRows;
    const block::PackedRow& mine = rows[row0 + lane % kRows];
    const char* const place = mine.token >= 0 ? base + (mine.token * args.params.q_token + mine.q_head * args.params.q_head) * 2 : nullptr;
#pragma unroll 4
    for (int i = 0; i < kCopies; ++i) {
      const int at = i * 32 + lane, row = at / Layout::kChunks, chunk = at % Layout::kChunks;
      const char* const from = reinterpret_cast<const char*>(__shfl_sync(0xffffffffu, reinterpret_cast<uint64_t>(place), row));
      ptx::cp_async_16(shared + Layout::offset(row0 + row, chunk), from ? from + chunk * 16 : base, from ? 16 : 0);
    }
    return;
  }
#pragma unroll 4
  for (int at = int(threadIdx.x); at < C.tile_rows * Layout::kChunks; at += C.threads()) {
    const int row = at / Layout::kChunks, chunk = at % Layout::kChunks;
    const bool valid = rows[row].token >= 0;
    const int64_t offset = rows[row].token * args.params.q_token + rows[row].q_head * args.params.q_head;
    ptx::cp_async_16(shared + Layout::offset(row, chunk), base + (valid ? offset * 2 + chunk * 16 : 0), valid ? 16 : 0);
  }
}

}  // namespace kvloom::sm80
