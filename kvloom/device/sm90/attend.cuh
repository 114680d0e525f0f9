// attend, family sm90: wgmma and tensor memory accelerator. A CTA is a warpgroup that loads and two or three that compute, 64 rows each. A
// computing warpgroup goes through the tiles of a pass: it starts the scores of a tile, and beside them O += P V of the tile before; while
// that product runs, scores become logits (variant, mask) and weights (softmax). Nothing but barriers of tiles stands between the warpgroups.
#pragma once

#include "kvloom/device/sm90/products.cuh"
#include "kvloom/device/sm90/team_rings.cuh"
#include "kvloom/device/sm90/weights.cuh"

namespace kvloom::sm90 {

template <AttendConfig C, class V>
struct Team : TeamRings<C, V> {
  using Rings = TeamRings<C, V>;
  using Rings::kForm, Rings::m, Rings::team, Rings::team_row0, Rings::pass, Rings::scaling, Rings::rows;
  using Rings::gathered, Rings::query_at, Rings::value_at, Rings::key_tile, Rings::value_tile, Rings::wait_keys, Rings::wait_values, Rings::leave_keys,
      Rings::leave_values, Rings::leave_queries, Rings::look_for_keys, Rings::look_for_gathered, Rings::skip_tile;

  // Fragments.
  Queries<C> q;
  float s[1][C.key_tiles()][4];
  uint32_t p[C.key_tiles() / 2][4];
  float o[1][C.dim_tiles()][4];
  block::OnlineSoftmax<1> softmax;

  __device__ __forceinline__ Team(const BoxedAttendArgs& a, SharedMemory<C, V>& memory, TeamPlaces<C>& places, bool gathered) : Rings(a, memory, places, gathered) {}

  template <int kBegin, int kEnd>
  __device__ __forceinline__ void weigh() {
    if constexpr (!block::has_weight<V>()) sm90::weigh<kBegin, kEnd>(s[0], softmax, scaling.scale);
  }

  // A tile is plain if all rows of the warpgroup keep all of its keys, else it is an edge.
  template <bool kEdge, bool kMayGather = C.gathers>
  __device__ __forceinline__ void start_scores_of(int32_t token) {
    constexpr bool kBiased = kForm == block::Form::biased;
    if (kEdge && pass->masked) this->warp_make_mask(token);
    if constexpr (kBiased) block::start_biased(s, rows(), 0, this->template keys_of<kEdge>(token), 1.0f / scaling.by.hooks);
    this->template wait_keys<kMayGather>();
    start_scores<C, kBiased>(s[0], q, key_tile());
  }
  /// Values of an edge are made fit for the product as soon as they are there.
  __device__ __forceinline__ void prepare_values(int32_t token) {
    wait_values();
    if (!C.gathers || !gathered || pass->masked) this->clear_dead_values(ptx::shared_address(m.v[value_at.at]), token);
  }
  template <bool kMayGather = C.gathers>
  __device__ __forceinline__ void start_values() {
    this->template wait_values<kMayGather>();
    start_accumulate<C>(o[0], p, value_tile());
  }
  __device__ __forceinline__ void finish_values() {
    ptx::warpgroup_wait<0>();
    ptx::pinned(o[0]);
    ptx::pinned(p);
    leave_values();
  }

  // A step is a tile, and beside it the product of weights and values of the one before. Rows are seldom raised once a pass is under way, so what
  // that takes stands outside of the loop of plain tiles, whose code runs straight on.
  using Tops = typename block::OnlineSoftmax<1>::Tops;

  /// As far as the logits of the tile at `token`; true if rows must be raised to their `tops`: some of the warp's, or (plain tiles, where that has
  /// code of its own) of the warpgroup's, which has to wait for products with one instruction (wgmma.wait_group is .aligned).
  template <bool kEdge, bool kMayGather = C.gathers>
  __device__ __forceinline__ bool begin_step(int32_t token, Tops& tops, bool above_zero) {
    start_scores_of<kEdge, kMayGather>(token);
    start_values<kMayGather>();
    ptx::warpgroup_wait<1>();
    ptx::pinned(s[0]);
    leave_keys();
    this->template apply_variant<kEdge>(s, token);
    if constexpr (block::has_weight<V>()) return false;
    if (above_zero) tops = lane_tops_above_zero(s[0]);
    else tops = lane_tops(s[0]);
    const bool warp_must = softmax.warp_must_raise(tops, scaling.slack);
    return kEdge ? warp_must : ptx::named_barrier_any(kTeamBarrier + team, 128, warp_must);
  }
  template <bool kEdge, bool kMayGather = C.gathers>
  __device__ __forceinline__ void end_step(int32_t token, const Tops& tops, bool raised) {
    typename block::OnlineSoftmax<1>::Rescale rescale;
    if (raised) rescale = softmax.raise(tops, scaling.scale, scaling.slack);
    weigh<0, C.key_tiles() / 2>();
    if (!kMayGather || !gathered) look_for_keys();
    if constexpr (!block::has_weight<V>()) ptx::made_before(softmax.sum[0][0], softmax.sum[0][1], ptx::shared_address(&m.never));
    finish_values();
    if (kMayGather && gathered) look_for_gathered();
    if (raised) rescale.apply(o);
    weigh<C.key_tiles() / 2, C.key_tiles()>();
    pack_weights<C.dtype>(p, s[0]);
    if constexpr (kEdge) prepare_values(token);
  }
  __device__ __forceinline__ void edge_step(int32_t token) {
    Tops tops;
    const bool raised = begin_step<true>(token, tops, false);
    end_step<true>(token, tops, raised);
  }
  /// Plain tiles from `token` down to `last`; the tile after them. Tiles that come by boxes have code of their own: where there is a branch over what
  /// the others take, a warp waits for its instructions behind it.
  __device__ __forceinline__ int32_t plain_steps(int32_t token, int32_t last) {
    if constexpr (C.gathers && C.own_loops) return gathered ? plain_steps_of<true>(token, last) : plain_steps_of<false>(token, last);
    return plain_steps_of<C.gathers>(token, last);
  }
  template <bool kMayGather>
  __device__ __forceinline__ int32_t plain_steps_of(int32_t token, int32_t last) {
    Tops tops;
#pragma unroll 1
    for (;;) {
      bool raised = false;
      const bool above_zero = __all_sync(0xffffffffu, softmax.max[0][0] >= 0.0f && softmax.max[0][1] >= 0.0f);
#pragma unroll 1
      for (; token >= last; token -= C.tile_kv) {
        raised = begin_step<false, kMayGather>(token, tops, above_zero);
        if (raised) break;
        end_step<false, kMayGather>(token, tops, false);
      }
      if (!raised) return token;
      end_step<false, kMayGather>(token, tops, true);
      token -= C.tile_kv;
    }
  }

  /// The first tile of a pass: there is no product beside it, and O is empty.
  __device__ __forceinline__ void first_step(int32_t token) {
    start_scores_of<true>(token);
    clear();
    prepare_values(token);
    ptx::warpgroup_wait<0>();
    ptx::pinned(s[0]);
    leave_keys();
    this->template apply_variant<true>(s, token);
    if constexpr (!block::has_weight<V>()) softmax.raise(lane_tops(s[0]), scaling.scale, scaling.slack);
    weigh<0, C.key_tiles()>();
    pack_weights<C.dtype>(p, s[0]);
  }
  /// Queries of the pass at `next`, unless that is the end: those in registers before the end of the pass before.
  __device__ __forceinline__ void take_queries(const RingPlace<kPasses>& next) {
    m.passes.wait_full(next);
    if (m.pass[next.at].end) return;
    m.query.wait_full(query_at);
    q.take(ptx::shared_address(m.q), team_row0);
    if constexpr (!C.q_in_registers) ptx::fence_shared_async();
    else if constexpr (C.stages_o) leave_queries();
  }
  /// Once a pass, when its queries are in registers: O of the pass before, which went out through Q's memory, has left it.
  __device__ __forceinline__ void leave_after_output() {
    if constexpr (C.q_in_registers && !C.stages_o) {
      ptx::store_wait();
      leave_queries();
    }
  }
  __device__ __forceinline__ int32_t next_tile(int32_t token) const { return pass->walk.template next<C.tile_kv>(token); }
  /// From the tile after the first to the last that the warpgroup keeps something of, whose product is not started; says where that left off.
  __device__ __forceinline__ int32_t go_on(int32_t token) {
    const Reach reach = pass->reach[team];
#pragma unroll 1
    while (pass->walk.has(token) && token + C.tile_kv > reach.begin) {
      if (token >= reach.plain_begin && token + C.tile_kv <= reach.plain_end) {
        token = next_tile(plain_steps(token, reach.plain_begin) + C.tile_kv);
      } else {
        edge_step(token);
        token = next_tile(token);
      }
    }
    return token;
  }
  /// Tiles that only others of the CTA keep something of, from `token` to before `end`.
  __device__ __forceinline__ int32_t skip_tiles(int32_t token, int32_t end) {
    for (; pass->walk.has(token) && token >= end; token = next_tile(token)) skip_tile();
    return token;
  }
  __device__ __forceinline__ void clear_o() {
#pragma unroll
    for (int d = 0; d < C.dim_tiles(); ++d) o[0][d][0] = o[0][d][1] = o[0][d][2] = o[0][d][3] = 0.0f;
  }
  __device__ __forceinline__ void clear() {
    clear_o();
    softmax.clear();
  }
};

}  // namespace kvloom::sm90
