// attend, family sm80: mma.sync and cp.async, sm_80 and up. A persistent CTA takes its items one after another: resolve the rows, then a tile
// of keys at a time: scores, variant and mask, softmax, accumulate; then finish. While a tile is worked on, the next ones are on their way
// (ring.cuh). Whoever copies keys looks up their places before, and where masks take more than ranges, makes those first.
#pragma once

#include "kvloom/device/sm80/load.cuh"
#include "kvloom/device/sm80/ring.cuh"
#include "kvloom/device/sm80/store.cuh"
#include "kvloom/device/sm80/tile_step.cuh"
#include "kvloom/device/sm80/transform.cuh"
#include "kvloom/device/sm80/wide.cuh"

namespace kvloom::sm80 {

/// One pass of an item's rows over a span of its keys, for one KV head.
template <AttendConfig C, class V>
struct Pass {
  using Memory = SharedMemory<C, V>;
  static_assert(C.tile_kv % 32 == 0 && (!C.own_keys() || 32 % C.copy_rows() == 0));
  static constexpr int kAhead = C.tiles_ahead(), kTilesTogether = max_of(1, 32 / C.copy_rows());
  static constexpr bool kPlacedKeys = C.fp8() && !block::has_key<V>();  // hooked keys come out with 16 bits, as they are
  const AttendArgs& args;
  Memory& m;
  int kv_head;
  block::TileWalk walk;
  bool masked;        // masks are made ahead; else ranges say it all
  bool in_registers;  // keys are turned there

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
  /// Positions and masks of this warp's part of the tile that begins at `token`. Keys that are not the span's have the position of one that is.
  __device__ __forceinline__ void warp_make_mask(int slot, int32_t token) const {
    auto& mask = m.mask[slot][part()];
    const int32_t first = token + part() * C.copy_rows();
#pragma unroll
    for (int i = lane(); i < 32 * C.part_words(); i += 32) {
      mask.pos[i] = block::position_of<C.paged>(args, m.group, clamp_to(first + i, walk.keys.begin, max_of(walk.keys.begin, walk.keys.end - 1)));
    }
    __syncwarp();
    block::warp_make_mask<V, C.copy_rows()>(args.params.variant, m.group, m.rows(), block::RowRuns::of<V>(args.group_size, m.item.row_begin, m.item.row_count), kv_head, first, mask);
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

  /// First tiles: everything up to the loads of the first ones, and Q. Ends with a barrier.
  __device__ __forceinline__ void block_begin(int32_t first, const TileRing<C, V>& ring) const {
#pragma unroll 1
    for (int t = 0; t <= kAhead; ++t) {
      if (looks_up_before(t)) warp_set_places(warp_look_up(t, after(first, t)));
      if (t < kAhead) warp_load(t, after(first, t), ring, ring.place(t));
    }
    ptx::cp_async_wait<C.own_keys() ? kAhead : 0>();  // Q
    __syncthreads();
  }

  struct LaneOffsets {
    uint32_t k, v;  // from a tile's address to the lane's
  };

  /// What is to be known of tile t for the warps that work on it.
  __device__ __forceinline__ TileView<C> view(int t, int32_t token, const RingPlace& at, const LaneOffsets& lane_offset, int row0, int key0) const {
    TileView<C> tile;
    tile.k = ptx::shared_address(Memory::kTurned ? m.turned : m.k[at.stage]) + lane_offset.k;
    tile.v = ptx::shared_address(m.v[at.stage]) + lane_offset.v;
    const auto* known = m.mask[slot(t, at)];
    tile.keys = {&m.group, token, key0, kv_head, m.group.kv_pos0 + token, masked ? known->pos : nullptr, masked ? known->word : nullptr,
                 int32_t(sizeof *known), C.copy_rows(), C.part_words()};
    tile.rows = m.rows();
    tile.row0 = row0;
    tile.turns = in_registers ? m.turns : nullptr;
    tile.cut = masked ? known[part()].full == 0 : token < walk.all_begin || token + C.tile_kv > walk.all_end;
    return tile;
  }

  /// The state of the warp's rows over all tiles.
  template <class State, class Q>
  __device__ __forceinline__ void run(State& state, Q& q, const block::Scaling& scaling, int row0, int key0, block::Marks& marks) const {
    const bool together = block::has_key<V>() && !in_registers;  // all warps stay at the same tile: they rewrite its keys
    int32_t token = walk.start;
    TileRing<C, V> ring(m);
    block_begin(token, ring);
    if constexpr (block::has_query<V>()) {
      block_transform_queries<C, V>(args, m);
      __syncthreads();
    }
    if constexpr (kPlacedKeys) {
      arrange_queries<C, C.threads()>(m.q, int(threadIdx.x));
      __syncthreads();
    }
    q.hold();
    if constexpr (block::kMarks) {
      if (walk.has(token)) ring.warp_wait(false);
      marks.fed();
    }
    bool there = false;  // this tile, as far as one has seen
    const LaneOffsets lane_offset{ptx::kept(Keys<C, kPlacedKeys, C.key_tiles()>::lane_offset(key0)),
                                  ptx::kept(Values<C, 4>::lane_offset(C.wide() ? 0 : key0))};
#pragma unroll 1
    for (int t = 0; walk.has(token); ++t, token = after(token, 1)) {
      ring.warp_wait(there);
      there = false;  // a tile that no row keeps anything of does not look at the next
      if (together) __syncthreads();  // this tile is there for all; everybody is done with the one before
      warp_load(t + kAhead, after(token, kAhead), ring, ring.place(kAhead));
      const TileView<C> tile = view(t, token, ring.reading, lane_offset, row0, key0);
      if constexpr (block::has_key<V>()) {
        if (!in_registers) {
          block_transform_keys<C, V>(args, tile.keys, ring.reading.stage, m);
          __syncthreads();
        }
      }
      Lookup next{0, false, 0};
      if (looks_up_before(t + kAhead + 1)) next = warp_look_up(t + kAhead + 1, after(token, kAhead + 1));
      if (!masked || !is_dead(slot(t, ring.reading))) step(state, q, scaling, tile, [&] { there = ring.warp_sees_next(); });
      ring.warp_leave();
      if (looks_up_before(t + kAhead + 1)) warp_set_places(next);
    }
    ring.end();
  }

  template <class State, class Q, class F>
  __device__ __forceinline__ void step(State& state, Q& q, const block::Scaling& scaling, const TileView<C>& tile, F&& before_values) const {
    if constexpr (C.wide()) {
      warp_wide_tile_step<C, V>(args, tile, q, scaling, state, m);
    } else {
      warp_tile_step<C, V>(args, tile, q, scaling, state, before_values);
    }
  }
};

/// The state of an item's rows over `keys` for one KV head, stored.
template <AttendConfig C, class V>
__device__ __forceinline__ void block_attend(const AttendArgs& args, const PlanView& plan, int kv_head, const block::KeySpan& keys,
                                             const ChunkPlace& place, SharedMemory<C, V>& m, block::Marks& marks) {
  constexpr bool kFp8K = Pass<C, V>::kPlacedKeys;
  const int warp = int(threadIdx.x) >> 5;
  const int row0 = (warp % C.warps_rows) * 16 * C.row_tiles();  // of this warp's rows in the tile
  const int key0 = (warp / C.warps_rows) * C.warp_keys();       // of this warp's keys in a tile
  __syncthreads();  // the previous pass is done with shared memory
  block::block_resolve_rows<V, C.tile_rows, C.threads()>(args, plan, m.item, m.group, kv_head, keys, m.rows());
  block_load_queries<C>(args, m.row, m.q);
  ptx::cp_async_commit();
  const Pass<C, V> pass{args, m, kv_head, block::TileWalk::of<C.tile_kv>(keys, m.hull), block::needs_masks<V>(m.group, args.params.variant.range),
                        can_turn_in_registers<C, V>() && turns_whole_heads(args.params.variant.rope, C.head_dim_qk)};
  constexpr block::Form kForm = C.wide() ? block::Form::hooked : block::form_of<V>(C.fixed_split);
  const block::Scaling scaling = block::Scaling::of<V, kForm>(args.params.variant, kv_head, kFp8K ? power_of_two(score_log2<C>()) : 1.0f);
  Queries<C, kFp8K> q(ptx::shared_address(m.q), row0);
  if constexpr (C.wide()) {
    WarpState<C, C.head_dim_vo / C.warps_kv / 8> state;
    state.clear();
    pass.run(state, q, scaling, row0, key0, marks);
    marks.attended();
    block_store_wide<C, V>(args, place, kv_head, scaling.scale, state, m);
  } else {
    WarpState<C, C.head_dim_vo / 8> state;
    state.clear();
    pass.run(state, q, scaling, row0, key0, marks);
    marks.attended();
    block_store<C, V>(args, place, kv_head, row0, scaling.scale, state, m);
  }
}

}  // namespace kvloom::sm80
