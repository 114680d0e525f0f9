// The warps that fetch tiles of K and V by boxes. Each has a part of every tile's keys; with a cluster, the CTAs share the parts out and every
// box lands in all of them.
#pragma once

#include "kvloom/device/block/key_list.cuh"
#include "kvloom/device/ptx/roles.cuh"
#include "kvloom/device/sm90/items.cuh"

namespace kvloom::sm90 {

template <AttendConfig C, class V>
struct TileLoader {
  static constexpr int kParts = kLoaderWarps * C.ctas, kPartKeys = C.tile_kv / kParts;
  static constexpr int kCountedLanes = 16;  // lanes from here on stand for the boxes that the other CTA's warp fetches: its bytes count here, too
  static_assert(C.ctas <= 2 && kPartKeys / 8 <= kCountedLanes && kPartKeys % 8 == 0);

  const BoxedAttendArgs& args;
  SharedMemory<C, V>& m;
  const int lane = int(threadIdx.x) & 31, warp = int(threadIdx.x) >> 5;
  const int part = rank<C>() * kLoaderWarps + warp;
  const int lane_key = lane_key_of(args.boxes.rows, part);

  /// First key of this lane's box in a tile; -1: no box.
  __device__ __forceinline__ static int lane_key_of(int box_keys, int part) {
    const int lane = int(threadIdx.x) & 31, box = lane % kCountedLanes;
    if (box * box_keys >= kPartKeys || (C.ctas == 1 && lane >= kCountedLanes)) return -1;
    const int of = lane < kCountedLanes ? part : (part + kLoaderWarps) % kParts;
    return of * kPartKeys + box * box_keys;
  }

  /// A box of this lane, in some tile.
  struct Box {
    bool live;   // some row of the group may keep some of its keys; others are not fetched, and their pages not asked for
    int32_t at;  // paged: page; ragged: token
    int32_t in_page;  // token / 8
    int32_t keys;     // ragged: that are there
  };
  /// Ragged: the token after the last of the pass's list.
  __device__ __forceinline__ static int32_t end_of(const Pass<C>& pass) { return int32_t(pass.group.list_begin) + pass.group.kv_end; }
  /// `kPrefetch`: its page id is brought near instead.
  template <bool kPrefetch = false>
  __device__ __forceinline__ Box find(const Pass<C>& pass, int32_t token) const {
    const block::TileWalk& walk = pass.walk;
    const int32_t key = token + lane_key, end = key + args.boxes.rows;
    // Of a tile that the rows' last keys are in, those that later rows of the group keep come along: nothing of them has to be cleared.
    const bool kept = (key < pass.seen_end && end > walk.any_begin) || (walk.prefix_end > walk.keys.begin && key < walk.prefix_end && end > walk.keys.begin);
    if (lane_key < 0 || !walk.has(token) || !kept) return {false, 0, 0, 0};
    const block::KeySlot<C.paged> slot(args.attend, pass.group, key);
    if constexpr (C.paged && kPrefetch) {
      ptx::prefetch_line(args.attend.params.pages.at(slot.entry));
      return {false, 0, 0, 0};
    }
    if constexpr (C.paged) return {true, int32_t(args.attend.params.pages[slot.entry]), int32_t(uint32_t(slot.in_page) / 8), 0};
    const int32_t at = int32_t(slot.entry);
    return {true, at, 0, min_of(args.boxes.rows, max_of(args.boxes.tokens, end_of(pass)) - at)};
  }

  /// This warp's boxes of a tile of K or V.
  template <class Tile>
  __device__ __forceinline__ void warp_fetch(const AttendBoxes::Of& of, const Box& box, int kv_head, int32_t end, uint32_t tile, uint32_t full) const {
    const uint32_t live = __ballot_sync(0xffffffffu, box.live);
    const int box_keys = args.boxes.rows;
    const uint32_t keys = C.paged ? uint32_t(__popc(live) * box_keys) : __reduce_add_sync(0xffffffffu, uint32_t(box.live ? box.keys : 0));
    if (ptx::elect_one()) ptx::barrier_arrive_expect(full, keys * uint32_t(Tile::kGroupBytes / 8));
    const int32_t place = C.paged ? block::box_place(box.at, of, kv_head) : box.at;
    // Some boxes at a time: the answers of several lanes are under way together.
    constexpr int kTogether = min_of(kPartKeys / 8, 4);
#pragma unroll 1
    for (int first = 0; first * box_keys < kPartKeys; first += kTogether) {
      int32_t x[kTogether], in_page[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        x[i] = __shfl_sync(0xffffffffu, place, first + i);
        in_page[i] = C.paged ? __shfl_sync(0xffffffffu, box.in_page, first + i) : 0;
      }
      if (!ptx::elect_one()) continue;
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (!(live >> (first + i) & 1u)) continue;
        const uint32_t to = tile + Tile::row(part * kPartKeys) + uint32_t(first + i) * (uint32_t(box_keys) / 8 * Tile::kGroupBytes);
        if constexpr (C.paged) {
          ptx::load_box<C.ctas>(to, &of.map, full, 0, 0, 0, in_page[i], x[i]);
        } else if (x[i] + box_keys <= end) {
          ptx::load_box<C.ctas>(to, &of.map, full, 0, x[i], 0, 0, kv_head);
        } else {
          fetch_end<Tile>(of, to, full, x[i], end, kv_head);
        }
      }
    }
    __syncwarp();
  }
  /// The box at token `x` as far as there are tokens, which is before `end`.
  template <class Tile>
  __device__ __forceinline__ void fetch_end(const AttendBoxes::Of& of, uint32_t to, uint32_t full, int32_t x, int32_t end, int kv_head) const {
    int k = 0;
#pragma unroll 1
    for (; x + k + 8 <= end; k += 8) ptx::load_box<C.ctas>(to + Tile::row(k), &of.eight, full, 0, x + k, 0, 0, kv_head);
#pragma unroll 1
    for (; x + k < end; ++k) {
#pragma unroll 1
      for (int b = 0; b < Tile::kBlocks; ++b) {
        ptx::load_box<C.ctas>(to + Tile::row(k) + uint32_t(b * Tile::kBlockStride), &of.one, full, 0, x + k, b, 0, kv_head);
      }
    }
  }

  RingPlace<C.stages> to;
  RingPlace<C.value_stages> values_to;

  __device__ __forceinline__ Ring<kPasses>& known() const { return m.passes; }
  /// Makes the first page ids of a pass be near: nothing can be fetched yet.
  __device__ __forceinline__ void warp_look_ahead(const Pass<C>& pass) const { find<true>(pass, pass.walk.start); }
  /// Keys of a tile are asked for before the values of the one before it: that is the order in which they are used and left.
  __device__ __forceinline__ void warp_fetch_pass(const Pass<C>& pass) {
    const int kv_head = pass.kv_head;
    const int32_t end = C.paged ? 0 : max_of(args.boxes.tokens, end_of(pass));
    int32_t token = pass.walk.start;
    Box next = find(pass, token), before{};
    const auto fetch_values = [&] {
      m.values.wait_left(values_to);
      warp_fetch<VTile<C>>(args.boxes.v, before, kv_head, end, ptx::shared_address(m.v[values_to.at]), ptx::shared_address(&m.values.full[values_to.at]));
      values_to.next();
    };
#pragma unroll 1
    for (bool first = true; pass.walk.has(token); first = false) {
      const Box box = next;
      token = pass.walk.template next<C.tile_kv>(token);
      next = find(pass, token);  // on its way while this tile is waited for
      m.keys.wait_left(to);
      warp_fetch<KTile<C>>(args.boxes.k, box, kv_head, end, ptx::shared_address(m.k[to.at]), ptx::shared_address(&m.keys.full[to.at]));
      to.next();
      if (!first) fetch_values();
      before = box;
    }
    if (pass.walk.has(pass.walk.start)) fetch_values();
  }
};

/// Each of the loading warpgroup's warps, where tiles come by boxes: two fetch tiles, one goes through the items, one fetches Q.
template <AttendConfig C, class V>
__device__ __forceinline__ void warp_load_boxes(const BoxedAttendArgs& args, SharedMemory<C, V>& m, int warp) {
  RingPlace<kPasses> at;
  if (warp < kLoaderWarps) {
    TileLoader<C, V> tiles{args, m};
    block::each_pass(m, at, tiles);
  } else if (warp == kLoaderWarps) {
    block::Passes<PassMaker<C, V>> passes(args.attend, m);
    while (!passes.done) passes.warp_make_next();
  } else {
    QueryLoader<C, V> queries{args, m};
    block::each_pass(m, at, queries);
  }
}

}  // namespace kvloom::sm90
