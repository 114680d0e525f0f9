// attend, family sm80: mma.sync and cp.async, sm_80 and up. A persistent CTA takes its items one after another: resolve the rows, then a tile
// of keys at a time: scores, variant and mask, softmax, accumulate; then finish. While a tile is worked on, the next ones are on their way
// (ring.cuh). Whoever copies keys looks up their places before, and where masks take more than ranges, makes those first.
#pragma once

#include "kvloom/device/sm80/key_loads.cuh"
#include "kvloom/device/sm80/store.cuh"
#include "kvloom/device/sm80/tile_step.cuh"
#include "kvloom/device/sm80/transform.cuh"
#include "kvloom/device/sm80/wide.cuh"

namespace kvloom::sm80 {

/// One pass of an item's rows over a span of its keys, for one KV head.
template <AttendConfig C, class V>
struct Pass : KeyLoads<C, V> {
  using Loads = KeyLoads<C, V>;
  using typename Loads::Lookup, typename Loads::Memory;
  using Loads::args, Loads::m, Loads::walk, Loads::kv_head, Loads::masked, Loads::kAhead, Loads::after, Loads::part, Loads::slot, Loads::is_dead;
  using Loads::block_begin, Loads::warp_load, Loads::looks_up_before, Loads::warp_look_up, Loads::warp_set_places;
  static constexpr bool kPlacedKeys = C.fp8() && !block::has_key<V>();  // hooked keys come out with 16 bits, as they are
  bool in_registers;  // keys are turned there

  struct LaneOffsets {
    uint32_t k, v;  // from a tile's address to the lane's
  };

  /// What is to be known of tile t for the warps that work on it.
  __device__ __forceinline__ TileView<C> view(int t, int32_t token, const RingPlace& at, const LaneOffsets& lane_offset, int row0, int key0) const {
    TileView<C> tile;
    tile.k = ptx::shared_address(Memory::kTurned ? m.turned : m.k[at.stage]) + lane_offset.k;
    tile.v = ptx::shared_address(m.v[at.stage]) + lane_offset.v;
    const auto* known = m.mask[slot(t, at)];
    tile.keys = {&m.group, token, key0, kv_head, m.group.kv_pos0 + token, masked && m.group.kv_position != KvPosition::linear ? known->pos : nullptr, masked ? known->word : nullptr,
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
  if constexpr (C.own_keys()) {
    block_load_queries<C>(args, m.row, m.q);
    ptx::cp_async_commit();
  }
  const Pass<C, V> pass{{args, m, kv_head, block::TileWalk::of<C.tile_kv>(keys, m.hull), block::needs_masks<V>(m.group, args.params.variant.range)},
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
