// The warps that fetch tiles of K and V row by row, where pages are too small for boxes. Where a key's rows lie is worked out once a key; a row
// that no row of queries keeps becomes zeros, and its page is not asked for.
#pragma once

#include "kvloom/device/sm90/load.cuh"

namespace kvloom::sm90 {

template <AttendConfig C, class V>
struct RowLoader {
  static constexpr int kPartKeys = C.tile_kv / kLoaderWarps;
  static_assert(C.ctas == 1);

  const AttendArgs& args;
  SharedMemory<C, V>& m;
  const int lane = int(threadIdx.x) & 31, warp = int(threadIdx.x) >> 5;

  /// Places of this warp's part of the tile at `token`. `turn`: of the two tiles that places are kept of.
  __device__ __forceinline__ void warp_find(const Pass<C>& pass, int32_t token, int turn) const {
    const block::TileWalk& walk = pass.walk;
#pragma unroll 1
    for (int i = lane; i < kPartKeys; i += 32) {
      const int32_t key = token + warp * kPartKeys + i;
      RowPlace place{nullptr, nullptr};
      if (walk.has(token) && key >= walk.keys.begin && key < walk.keys.end && walk.touches(key)) {
        const KvView& kv = args.params.kv;
        const block::KeySlot<C.paged> slot(args, pass.group, key);
        const int64_t page = args.params.pages[slot.entry];
        place.k = static_cast<const char*>(kv.k) + (page * kv.k_page + slot.in_page * kv.k_token + pass.kv_head * kv.k_head) * 2;
        place.v = static_cast<const char*>(kv.v) + (page * kv.v_page + slot.in_page * kv.v_token + pass.kv_head * kv.v_head) * 2;
      }
      m.place[turn][warp * kPartKeys + i] = place;
    }
    __syncwarp();
  }

  /// Starts the copies of this warp's part of a tile; every lane arrives at `full` when its own have landed.
  template <class Tile>
  __device__ __forceinline__ void warp_copy(const RowPlace* places, const char* RowPlace::*side, uint32_t tile, uint32_t full) const {
    constexpr int kBlockChunks = Tile::kBlockBytes / 16, kChunks = Tile::kBlocks * kBlockChunks;
#pragma unroll 4
    for (int at = lane; at < kPartKeys * kChunks; at += 32) {
      const int row = warp * kPartKeys + at / kChunks, chunk = at % kChunks;
      const char* const from = places[row].*side;
      const int swizzle = row / (128 / Tile::kBlockBytes) % kBlockChunks;
      const uint32_t to = tile + Tile::row(row) + uint32_t(chunk / kBlockChunks * Tile::kBlockStride + ((chunk % kBlockChunks ^ swizzle) << 4));
      ptx::cp_async_16(to, from + chunk * 16, from != nullptr ? 16 : 0);
    }
    ptx::cp_async_arrive(full);
  }

  /// In the order of TileLoader.
  __device__ __forceinline__ void run() const {
    RingPlace<kPasses> at;
    RingPlace<C.stages> to, values_to;
    int turn = 0;
#pragma unroll 1
    for (;; at.next()) {
      m.passes.wait_full(at);
      const Pass<C>& pass = m.pass[at.at];
      if (pass.end) return;
      int32_t token = pass.walk.start;
      const auto copy_values = [&](int of) {
        m.values.wait_left(values_to);
        warp_copy<VTile<C>>(m.place[of], &RowPlace::v, ptx::shared_address(m.v[values_to.at]), ptx::shared_address(&m.values.full[values_to.at]));
        values_to.next();
      };
      __syncwarp();
      warp_find(pass, token, turn);
#pragma unroll 1
      for (bool first = true; pass.walk.has(token); first = false, turn ^= 1) {
        m.keys.wait_left(to);
        warp_copy<KTile<C>>(m.place[turn], &RowPlace::k, ptx::shared_address(m.k[to.at]), ptx::shared_address(&m.keys.full[to.at]));
        to.next();
        if (!first) copy_values(turn ^ 1);
        __syncwarp();  // places of the tile before are done with
        token = pass.walk.template next<C.tile_kv>(token);
        warp_find(pass, token, turn ^ 1);
      }
      if (pass.walk.has(pass.walk.start)) copy_values(turn ^ 1);
      __syncwarp();
      if (lane == 0) ptx::barrier_arrive(ptx::shared_address(&m.passes.left[at.at]));
    }
  }
};

}  // namespace kvloom::sm90
