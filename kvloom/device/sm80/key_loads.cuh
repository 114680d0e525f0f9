// Keys of a pass on their way: where their rows lie, what is known of a tile before it is copied, and which warp copies what of it.
#pragma once

#include "kvloom/device/sm80/load.cuh"
#include "kvloom/device/sm80/ring.cuh"

namespace kvloom::sm80 {

/// One pass of an item's rows over a span of its keys, for one KV head.
template <AttendConfig C, class V>
struct KeyLoads {
  using Memory = SharedMemory<C, V>;
  static_assert(C.tile_kv % 32 == 0 && (!C.own_keys() || 32 % C.copy_rows() == 0));
  static constexpr int kAhead = C.tiles_ahead(), kTilesTogether = max_of(1, 32 / C.copy_rows());
  const AttendArgs& args;
  Memory& m;
  int kv_head;
  block::TileWalk walk;
  bool masked;  // masks are made ahead; else ranges say it all

  __device__ __forceinline__ bool in_span(int32_t j) const { return j >= walk.keys.begin && j < walk.keys.end; }
  /// `n` tiles after the one that begins at `token`.
  __device__ __forceinline__ int32_t after(int32_t token, int n) const {
#pragma unroll 4
    for (int i = 0; i < n; ++i) token = walk.template next<C.tile_kv>(token);
    return token;
  }

  __device__ __forceinline__ static int lane() { return int(threadIdx.x) & 31; }
  __device__ __forceinline__ static int warp() { return int(threadIdx.x) >> 5; }
  /// The keys of a tile that this warp copies, if it copies any: which part of the tile they are.
  __device__ __forceinline__ static int part() { return C.own_keys() ? warp() : 0; }

  // Where masks take more than ranges. `slot`: of the tile, in the ring of what is known.
  __device__ __forceinline__ static int slot(int t, const RingPlace& at) { return C.own_keys() ? t % Memory::kSlots : at.stage; }
  /// Masks of this warp's part of the tile that begins at `token`. Keys that are not the span's have the position of one that is.
  __device__ __forceinline__ void warp_make_mask(int slot, int32_t token) const {
    auto& mask = m.mask[slot][part()];
    const int32_t first = token + part() * C.copy_rows();
    if (block::mask_needs_positions<V>(m.group)) {
#pragma unroll
      for (int i = lane(); i < 32 * C.part_words(); i += 32) {
        mask.pos[i] = block::position_of<C.paged>(args, m.group, clamp_to(first + i, walk.keys.begin, max_of(walk.keys.begin, walk.keys.end - 1)));
      }
      __syncwarp();
    }
    block::warp_make_mask<V, C.copy_rows(), true>(args.params.variant, m.group, m.rows(), block::RowRuns::of<V>(args.group_size, m.item.row_begin, m.item.row_count), kv_head, first, mask);
  }
  /// True if key `i` of this warp's part of the tile is kept by some row.
  __device__ __forceinline__ bool is_live(int slot, int32_t token, int i) const {
    const int32_t j = token + part() * C.copy_rows() + i;
    if (!walk.has(token) || !in_span(j)) return false;
    return masked ? m.mask[slot][part()].live[i / 32] >> (i % 32) & 1 : walk.touches(j);
  }
  /// True if no row keeps any of the keys that this warp works on.
  __device__ __forceinline__ bool is_dead(int slot) const {
    uint32_t any = 0;
#pragma unroll
    for (int w = 0; w < C.part_words(); ++w) any |= m.mask[slot][part()].live[w];
    return any == 0;
  }

  // Where the rows lie that a warp copies. With keys of its own: of some tiles at a time, asked for while the one before is worked on. Else of a
  // tile, when it is about to be copied.
  struct Lookup {
    int32_t token;  // of the key
    bool live;
    int64_t page;  // may be on its way
  };
  __device__ __forceinline__ Lookup look_up(int slot, int32_t token, int i) const {
    const bool live = is_live(slot, token, i);
    const int32_t key = token + part() * C.copy_rows() + i;
    return {key, live, live ? block::page_of<C.paged>(args, m.group, key) : 0};
  }
  __device__ __forceinline__ void set_place(int i, const Lookup& found) const {
    m.place[warp()][i] = found.live ? place_of<C>(args, m.group, kv_head, found.token, found.page) : KeyPlace{nullptr, nullptr};
  }

  // With keys of its own: places of some tiles are looked up at a time; of one, where its mask has to be made first.
  __device__ __forceinline__ int tiles_together() const { return masked ? 1 : kTilesTogether; }
  __device__ __forceinline__ bool looks_up_before(int t) const { return C.own_keys() && (masked || t % kTilesTogether == 0); }
  /// This lane's key of tiles_together() tiles from number `t` on, the first of which begins at `token`.
  __device__ __forceinline__ Lookup warp_look_up(int t, int32_t token) const {
    const int tile = lane() / C.copy_rows(), slot = t % Memory::kSlots;
    if (masked && walk.has(token)) warp_make_mask(slot, token);
#pragma unroll
    for (int i = 1; i < kTilesTogether; ++i) token = i <= tile ? after(token, 1) : token;
    if (tile >= tiles_together()) return {token, false, 0};
    return look_up(slot, token, lane() % C.copy_rows());
  }
  __device__ __forceinline__ void warp_set_places(const Lookup& found) const {
    __syncwarp();  // the places before are done with
    set_place(lane(), found);
    __syncwarp();
  }
  /// This warp's copies of tile t, which begins at `token`, if it has any. Warps that copy whole tiles first look at what they copy.
  __device__ __forceinline__ void warp_load(int t, int32_t token, const TileRing<C, V>& ring, const RingPlace& to) const {
    if constexpr (C.own_keys()) {
      if (walk.has(token)) {
        const KeyPlace* place = m.place[warp()] + (masked ? 0 : t % kTilesTogether * C.copy_rows());
        warp_load_rows<C>(place, warp() * C.copy_rows(), ptx::shared_address(m.k[to.stage]), ptx::shared_address(m.v[to.stage]));
      }
      ptx::cp_async_commit();
    } else {
      if (t % C.warps() != warp() || !walk.has(token)) return;
      ring.warp_wait_free(to);
      if (masked) warp_make_mask(to.stage, token);
      constexpr int kEach = C.copy_rows() / 32;
      Lookup found[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) found[i] = look_up(to.stage, token, 32 * i + lane());
#pragma unroll
      for (int i = 0; i < kEach; ++i) set_place(32 * i + lane(), found[i]);
      __syncwarp();
      warp_load_rows<C>(m.place[warp()], 0, ptx::shared_address(m.k[to.stage]), ptx::shared_address(m.v[to.stage]));
      ring.warp_arrive_landed(to);
    }
  }

  /// This warp's share of one of the first tiles, beside which there is nothing else to do: all warps copy it, and wait for that as for Q. The one that would
  /// have copied the tile alone arrives for all.
  __device__ __forceinline__ void warp_load_share(int t, int32_t token, const TileRing<C, V>& ring, const RingPlace& to) const {
    constexpr int kRows = C.tile_kv / C.warps();
    static_assert(C.own_keys() || (C.tile_kv % C.warps() == 0 && kRows <= 32));
    if (!walk.has(token)) return;
    ring.warp_wait_free(to);
    const int row0 = warp() * kRows;
    if (lane() < kRows) set_place(lane(), look_up(to.stage, token, row0 + lane()));
    __syncwarp();
    warp_load_rows<C, kRows>(m.place[warp()], row0, ptx::shared_address(m.k[to.stage]), ptx::shared_address(m.v[to.stage]));
    ptx::cp_async_commit();
    if (t % C.warps() == warp()) ring.warp_arrive_landed(to);
    __syncwarp();  // before the next places
  }

  /// First tiles: everything up to the loads of the first ones, and Q. Ends with a barrier.
  __device__ __forceinline__ void block_begin(int32_t first, const TileRing<C, V>& ring) const {
#pragma unroll 1
    for (int t = 0; t <= kAhead; ++t) {
      if (looks_up_before(t)) warp_set_places(warp_look_up(t, after(first, t)));
      if (t == kAhead) break;
      if (C.own_keys() || masked) {
        warp_load(t, after(first, t), ring, ring.place(t));
      } else {
        warp_load_share(t, after(first, t), ring, ring.place(t));
      }
    }
    if constexpr (!C.own_keys()) {  // behind the tiles, for which more is to be done
      block_load_queries<C>(args, m.row, m.q);
      ptx::cp_async_commit();
    }
    ptx::cp_async_wait<C.own_keys() ? kAhead : 0>();  // Q
    __syncthreads();
  }
};

}  // namespace kvloom::sm80
