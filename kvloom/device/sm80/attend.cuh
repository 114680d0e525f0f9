// attend, family sm80: mma.sync and cp.async, sm_80 and up. A persistent CTA takes its items one after another: resolve the rows, then a tile
// of keys at a time: scores, variant and mask, softmax, accumulate; then finish. While a tile is worked on, the next ones are on their way;
// one barrier a tile. Before a tile is loaded, in turn and a tile apart: the positions of its keys, the masks of its rows, the places of its keys.
#pragma once

#include "kvloom/device/sm80/load.cuh"
#include "kvloom/device/sm80/store.cuh"
#include "kvloom/device/sm80/tile_step.cuh"
#include "kvloom/device/sm80/transform.cuh"
#include "kvloom/device/sm80/wide.cuh"

namespace kvloom::sm80 {

/// One pass of an item's rows over a span of its keys, for one KV head.
template <AttendConfig C, class V>
struct Pass {
  using Memory = SharedMemory<C, V>;
  static_assert(C.tile_kv <= C.threads() && C.tile_kv % 32 == 0);
  static constexpr bool kPlacedKeys = C.fp8() && !block::has_key<V>();  // hooked keys come out with 16 bits, as they are
  static constexpr bool kHooked = block::has_logit<V>() || block::has_keep<V>() || block::has_key<V>();  // somebody reads positions
  const AttendArgs& args;
  Memory& m;
  int kv_head;
  TileWalk walk;
  bool masked;        // masks are made ahead; else ranges say it all
  bool in_registers;  // keys are turned there

  __device__ __forceinline__ bool looks_up() const { return int(threadIdx.x) < C.tile_kv; }
  __device__ __forceinline__ bool in_span(int32_t j) const { return j >= walk.keys.begin && j < walk.keys.end; }

  /// Positions of the keys of tile number `t`, which begins at `token`. Keys that are not the span's get those of one that is.
  __device__ __forceinline__ void block_look_up_positions(int t, int32_t token) const {
    if (!looks_up() || (!kHooked && !masked)) return;
    const int32_t j = clamp_to(token + int32_t(threadIdx.x), walk.keys.begin, max_of(walk.keys.begin, walk.keys.end - 1));
    if (token < walk.end) m.pos[t % Memory::kTileSlots][threadIdx.x] = position_of<C>(args, m.group, j);
  }
  __device__ __forceinline__ void block_clear_mask(int t) const {
    if (int(threadIdx.x) < C.mask_words()) m.live[t % Memory::kTileSlots][threadIdx.x] = 0;
    if (threadIdx.x == 0) m.full[t % Memory::kTileSlots] = 1;
  }
  __device__ __forceinline__ void block_make_mask(int t, int32_t token) const {
    if (!masked || token >= walk.end) return;
    const int slot = t % Memory::kTileSlots;
    block::block_make_masks<V, C.tile_rows, C.mask_words(), C.threads()>(
        args.params.variant, m.group, walk.keys, m.rows(), kv_head, token,
        block::TileMask{m.mask[t % Memory::kMaskSlots], m.live[slot], &m.full[slot], m.pos[slot]});
  }
  /// True if key number `key` of the tile is kept by some row.
  __device__ __forceinline__ bool is_live(int t, int32_t token, int key) const {
    const int32_t j = token + key;
    if (token >= walk.end || !in_span(j)) return false;
    return masked ? m.live[t % Memory::kTileSlots][key / 32] >> (key % 32) & 1 : walk.touches(j);
  }
  /// True, for all threads alike, if no row keeps any key of tile t.
  __device__ __forceinline__ bool is_dead(int t) const {
    uint32_t any = 0;
#pragma unroll
    for (int w = 0; w < C.mask_words(); ++w) any |= m.live[t % Memory::kTileSlots][w];
    return any == 0;
  }
  __device__ __forceinline__ void set_place(int t, int32_t token, int key, bool live, int64_t page) const {
    m.place[t % Memory::kPlaceSlots][key] = live ? place_of<C>(args, m.group, kv_head, token + key, page) : KeyPlace{nullptr, nullptr};
  }
  /// Places of the keys of tiles t0 .. t0 + kTiles - 1, the page ids of all of them asked for at once.
  template <int kTiles>
  __device__ __forceinline__ void block_look_up_places(int t0, int32_t first) const {
    constexpr int kKeys = kTiles * C.tile_kv, kEach = ceil_div(kKeys, C.threads());
    bool live[kEach];
    int64_t page[kEach];
    int32_t token[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int n = int(threadIdx.x) + i * C.threads(), t = n / C.tile_kv, key = n % C.tile_kv;
      token[i] = first;
      for (int a = 0; a < t0 + t; ++a) token[i] = after(token[i], 1);
      live[i] = n < kKeys && is_live(t0 + t, token[i], key);
      page[i] = live[i] ? page_of<C>(args, m.group, token[i] + key) : 0;
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int n = int(threadIdx.x) + i * C.threads();
      if (n < kKeys) set_place(t0 + n / C.tile_kv, token[i], n % C.tile_kv, live[i], page[i]);
    }
  }
  /// Copies of tile t into `stage`; past the last tile zeros, so that nobody need ask.
  __device__ __forceinline__ void block_load(int t, int stage) const {
    block_load_tile<C>(m.place[t % Memory::kPlaceSlots], ptx::shared_address(m.k[stage]), ptx::shared_address(m.v[stage]));
    ptx::cp_async_commit();
  }

  /// `n` tiles after the one that begins at `token`.
  __device__ __forceinline__ int32_t after(int32_t token, int n) const {
#pragma unroll
    for (int i = 0; i < n; ++i) token = walk.template next<C.tile_kv>(token);
    return token;
  }

  /// First tiles: everything up to the loads of stages - 1 of them. Ends with all looked-up places visible after the next barrier.
  __device__ __forceinline__ void block_begin(int32_t first) const {
    const auto for_tiles = [&](int n, auto&& f) {
      int32_t token = first;
#pragma unroll 1
      for (int t = 0; t < n; ++t, token = after(token, 1)) f(t, token);
    };
    if (kHooked || masked) {
      for_tiles(C.stages + 2, [&](int t, int32_t token) {
        block_look_up_positions(t, token);
        block_clear_mask(t);
      });
      __syncthreads();
    }
    if (masked) {
      for_tiles(C.stages + 1, [&](int t, int32_t token) { block_make_mask(t, token); });
      __syncthreads();
    }
    block_look_up_places<2>(0, first);
    __syncthreads();
#pragma unroll
    for (int t = 0; t < C.stages - 1; ++t) {
      if (t >= 2) __syncthreads();
      block_load(t, t);
      if (t == 0) continue;
      __syncthreads();  // its place is free
      block_look_up_places<1>(t + 1, first);
    }
  }

  /// What is to be known of tile t for the warps that work on it.
  __device__ __forceinline__ TileView<C> view(int t, int32_t token, int stage, int row0, int key0) const {
    const int slot = t % Memory::kTileSlots;
    TileView<C> tile;
    tile.k = ptx::shared_address(Memory::kTurned ? m.turned : m.k[stage]);
    tile.v = ptx::shared_address(m.v[stage]);
    tile.keys = {&m.group, token, key0, kv_head, m.pos[slot], masked ? m.mask[t % Memory::kMaskSlots] : nullptr, C.mask_words()};
    tile.rows = m.rows();
    tile.row0 = row0;
    tile.turns = in_registers ? m.turns : nullptr;
    tile.cut = masked ? m.full[slot] == 0 : token < walk.all_begin || token + C.tile_kv > walk.all_end;
    return tile;
  }

  /// The state of the warp's rows over all tiles.
  template <class State, class Q>
  __device__ __forceinline__ void run(State& state, Q& q, const Scaling& scaling, int row0, int key0) const {
    int32_t token = walk.template first<C.tile_kv>();
    block_begin(token);
    int stage = 0;
#pragma unroll 1
    for (int t = 0; token < walk.end; ++t, token = after(token, 1)) {
      ptx::cp_async_wait<C.stages - 2>();
      __syncthreads();  // this tile is there; everybody is done with the one before
      block_load(t + C.stages - 1, stage == 0 ? C.stages - 1 : stage - 1);
      if (t == 0) {
        if constexpr (block::has_query<V>()) {
          block_transform_queries<C, V>(args, m);
          __syncthreads();
        }
        if constexpr (kPlacedKeys) {
          block_arrange_queries<C, V>(m);
          __syncthreads();
        }
        q.hold();
      }
      if constexpr (block::has_key<V>()) {
        if (!in_registers) {
          block_transform_keys<C, V>(args, kv_head, token, m.pos[t % Memory::kTileSlots], stage, m);
          __syncthreads();
        }
      }
      block_make_mask(t + C.stages + 1, after(token, C.stages + 1));
      if (masked) block_clear_mask(t + C.stages + 2);
      block_look_up_positions(t + C.stages + 2, after(token, C.stages + 2));
      const int32_t looked_up = after(token, C.stages);
      const bool live = looks_up() && is_live(t + C.stages, looked_up, int(threadIdx.x));
      const int64_t page = live ? page_of<C>(args, m.group, looked_up + int32_t(threadIdx.x)) : 0;
      if (!masked || !is_dead(t)) step(state, q, scaling, view(t, token, stage, row0, key0));
      if (looks_up()) set_place(t + C.stages, looked_up, int(threadIdx.x), live, page);
      stage = stage + 1 == C.stages ? 0 : stage + 1;
    }
    ptx::cp_async_wait<0>();
  }

  template <class State, class Q>
  __device__ __forceinline__ void step(State& state, Q& q, const Scaling& scaling, const TileView<C>& tile) const {
    if constexpr (C.wide()) {
      warp_wide_tile_step<C, V>(args, tile, q, scaling, state, m);
    } else {
      warp_tile_step<C, V>(args, tile, q, scaling, state);
    }
  }
};

/// The state of an item's rows over `keys` for one KV head, stored.
template <AttendConfig C, class V>
__device__ __forceinline__ void block_attend(const AttendArgs& args, const PlanView& plan, int kv_head, const block::KeySpan& keys,
                                             const ChunkPlace& place, SharedMemory<C, V>& m) {
  constexpr bool kFp8K = Pass<C, V>::kPlacedKeys;
  const int warp = int(threadIdx.x) >> 5;
  const int row0 = (warp % C.warps_rows) * 16 * C.row_tiles();  // of this warp's rows in the tile
  const int key0 = (warp / C.warps_rows) * C.warp_keys();       // of this warp's keys in a tile
  __syncthreads();  // the previous pass is done with shared memory
  block::block_resolve_rows<V, C.tile_rows, C.threads()>(args, plan, m.item, m.group, kv_head, keys, m.rows());
  block_load_queries<C>(args, m.row, m.q);  // arrives with the first tile
  const Pass<C, V> pass{args, m, kv_head, TileWalk::of<C.tile_kv>(keys, m.hull), block::needs_masks<V>(m.group, args.params.variant.range),
                        can_turn_in_registers<C, V>() && turns_whole_heads(args.params.variant.rope, C.head_dim_qk)};
  const Scaling scaling = Scaling::of<V>(args.params.variant, kv_head, kFp8K ? power_of_two(score_log2<C>()) : 1.0f);
  Queries<C, kFp8K> q(ptx::shared_address(m.q), row0);
  if constexpr (C.wide()) {
    WarpState<C, C.head_dim_vo / C.warps_kv / 8> state;
    state.clear();
    pass.run(state, q, scaling, row0, key0);
    block_store_wide<C, V>(args, place, kv_head, scaling.scale, state, m);
  } else {
    WarpState<C, C.head_dim_vo / 8> state;
    state.clear();
    pass.run(state, q, scaling, row0, key0);
    block_store<C, V>(args, place, kv_head, row0, scaling.scale, state, m);
  }
}

}  // namespace kvloom::sm80
