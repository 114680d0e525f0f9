// attend, family sm90: wgmma and tensor memory accelerator. A CTA is a warpgroup that loads and two or three that compute, 64 rows each. A
// computing warpgroup goes through the tiles of a pass: it starts the scores of a tile, and beside them O += P V of the tile before; while
// that product runs, scores become logits (variant, mask) and weights (softmax). Nothing but barriers of tiles stands between the warpgroups.
#pragma once

#include "kvloom/device/block/scaling.cuh"
#include "kvloom/device/sm90/load.cuh"
#include "kvloom/device/sm90/products.cuh"

namespace kvloom::sm90 {

inline constexpr int kTeamBarrier = 1;  // and the next ones: of each warpgroup that computes
inline constexpr int kComputeBarrier = 8;  // of all of them

template <AttendConfig C, class V>
struct Team {
  static constexpr block::Form kForm = block::form_of<V>(false);
  const AttendArgs& args;
  SharedMemory<C, V>& m;
  const int lane = int(threadIdx.x) & 31, team = ptx::uniform(int(threadIdx.x) >> 7) - 1, warp = ptx::uniform(int(threadIdx.x) >> 5) & 3;
  const int team_row0 = team * 64, row0 = team_row0 + warp * 16;  // of the CTA's rows

  // Of the moment.
  Pass<C>* pass;
  block::Scaling scaling;
  RingPlace<1> query_at;
  RingPlace<C.stages> key_at, value_at;
  int masks_made, masks_used;  // counted over all tiles that had masks: places in m.live

  // Fragments.
  Queries<C> q;
  float s[1][C.key_tiles()][4];
  uint32_t p[C.key_tiles() / 2][4];
  float o[1][C.dim_tiles()][4];
  block::OnlineSoftmax<1> softmax;

  const bool gathered;  // tiles come by copies of threads, whose writes wgmma sees behind a fence alone

  __device__ __forceinline__ Team(const AttendArgs& a, SharedMemory<C, V>& memory, bool rows) : args(a), m(memory), gathered(rows), masks_made(0), masks_used(0) {}

  __device__ __forceinline__ Descriptor key_tile() const { return KTile<C>::keys(ptx::shared_address(m.k[key_at.at])); }
  __device__ __forceinline__ Descriptor value_tile() const { return VTile<C>::values(ptx::shared_address(m.v[value_at.at])); }

  /// This warp is done with a tile, here and where else the same boxes landed.
  __device__ __forceinline__ void warp_leave(uint64_t& left) const {
    if constexpr (C.ctas == 1) {
      if (lane == 0) ptx::barrier_arrive(ptx::shared_address(&left));
    } else {
      if (lane < C.ctas) ptx::barrier_arrive_at(ptx::shared_address(&left), uint32_t(lane));
    }
  }
  __device__ __forceinline__ void leave_keys() { warp_leave(m.keys.left[key_at.at]), key_at.next(); }
  __device__ __forceinline__ void leave_values() { warp_leave(m.values.left[value_at.at]), value_at.next(); }
  __device__ __forceinline__ void wait_keys() {
    m.keys.wait_full(key_at);
    if (C.gathers() && gathered) ptx::fence_shared_async();
  }
  __device__ __forceinline__ void wait_values() {
    m.values.wait_full(value_at);
    if (C.gathers() && gathered) ptx::fence_shared_async();
  }
  /// A tile that none of the warpgroup's rows keeps anything of.
  __device__ __forceinline__ void pass_by() {
    m.keys.wait_full(key_at), leave_keys();
    m.values.wait_full(value_at), leave_values();
  }

  __device__ __forceinline__ block::Rows rows() const { return {pass->row + row0, pass->kept + row0, &pass->hull}; }
  template <bool kEdge>
  __device__ __forceinline__ block::WarpKeys keys_of(int32_t token) const {
    const auto& mask = m.mask[team * 4 + warp];
    const bool masked = kEdge && pass->masked;
    return {&pass->group, token, 0, pass->kv_head, pass->group.kv_pos0 + token, masked ? mask.pos : nullptr, masked ? mask.word : nullptr, 0,
            C.tile_kv, C.tile_kv / 32};
  }
  /// What the warp's rows keep of the tile at `token`, where ranges don't say it.
  __device__ __forceinline__ void warp_make_mask(int32_t token) {
    auto& mask = m.mask[team * 4 + warp];
    const block::KeySpan& keys = pass->walk.keys;
    __syncwarp();
#pragma unroll 1
    for (int i = lane; i < C.tile_kv; i += 32) {
      mask.pos[i] = block::position_of<C.paged>(args, pass->group, clamp_to(token + i, keys.begin, max_of(keys.begin, keys.end - 1)));
    }
    __syncwarp();
    const int count = clamp_to(pass->row_count - row0, 0, 16);
    block::warp_make_mask<V, C.tile_kv>(args.params.variant, pass->group, rows(),
                                        block::RowRuns::of<V>(args.group_size, pass->item.row_begin + pass->row_begin + row0, count), pass->kv_head, token,
                                        mask);
    if (lane < C.tile_kv / 32 && count > 0) atomicOr(&m.live[masks_made % 3][lane], mask.live[lane]);
    ++masks_made;
  }
  /// Scores of the tile at `token` become logits.
  template <bool kEdge>
  __device__ __forceinline__ void apply_variant(int32_t token) {
    bool cut = false;
    if constexpr (kEdge) {
      const block::KeptHull& hull = pass->warp_hull[team * 4 + warp];
      cut = pass->masked ? m.mask[team * 4 + warp].full == 0 : token < hull.all_begin || token + C.tile_kv > hull.all_end;
    }
    block::warp_apply_variant<V, kForm>(s, args.params.variant, scaling.by, rows(), 0, keys_of<kEdge>(token), cut);
  }

  /// Values of keys that no row keeps are whatever lies there: zeros instead, before they are multiplied by weights of zero.
  __device__ __forceinline__ void clear_dead_values(int32_t token) {
    const block::TileWalk& walk = pass->walk;
    if (!pass->masked && token >= walk.any_begin && token + C.tile_kv <= walk.any_end) return;
    if (pass->masked) ptx::named_barrier_sync(kComputeBarrier, 128 * C.teams());  // all have said what they keep
    const uint32_t tile = ptx::shared_address(m.v[value_at.at]);
    constexpr int kBlockChunks = VTile<C>::kBlockBytes / 16, kChunks = VTile<C>::kBlocks * kBlockChunks;
    uint32_t live[C.tile_kv / 32];
#pragma unroll
    for (int w = 0; w < C.tile_kv / 32; ++w) {
      const int32_t key = token + 32 * w + lane;
      live[w] = pass->masked ? m.live[masks_used % 3][w] : __ballot_sync(0xffffffffu, key >= walk.keys.begin && walk.touches(key));
    }
    const int thread = int(threadIdx.x) & 127;
#pragma unroll
    for (int i = 0; i < C.tile_kv * kChunks / 128; ++i) {
      const int r = (i * 128 + thread) / kChunks, chunk = (i * 128 + thread) % kChunks;
      const uint32_t at = VTile<C>::row(r) + uint32_t(chunk / kBlockChunks * VTile<C>::kBlockStride + chunk % kBlockChunks * 16);
      const int word = i * 128 / kChunks / 32;  // or the next one, where rows' chunks don't divide 128
      const uint32_t bits = r / 32 == word ? live[word] : live[min_of(word + 1, C.tile_kv / 32 - 1)];
      if (!(bits >> (r % 32) & 1u)) ptx::store_shared_16(tile + at, make_uint4(0, 0, 0, 0));
    }
    ptx::fence_shared_async();
    if (!pass->masked) return ptx::named_barrier_sync(kTeamBarrier + team, 128);
    // The words of the tile before this one: all have read them, and nobody writes them before the barrier.
    if (const int word = int(threadIdx.x) - 128; word < C.tile_kv / 32) m.live[(masks_used + 2) % 3][word] = 0;
    ptx::named_barrier_sync(kComputeBarrier, 128 * C.teams());
    ++masks_used;
  }

  /// Largest logits of the lane's rows: as eight chains in turn, which need no registers but their own.
  __device__ __forceinline__ typename block::OnlineSoftmax<1>::Tops lane_tops() const {
    float top[4][2];
#pragma unroll
    for (int n = 0; n < C.key_tiles(); ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) top[i][n % 2] = n < 2 ? s[0][n][i] : fmaxf(top[i][n % 2], s[0][n][i]);
    }
    typename block::OnlineSoftmax<1>::Tops tops;
#pragma unroll
    for (int h = 0; h < 2; ++h) tops.row[0][h] = fmaxf(fmaxf(top[2 * h][0], top[2 * h + 1][0]), fmaxf(top[2 * h][1], top[2 * h + 1][1]));
    return tops;
  }

  /// Logits to weights, n8 tiles [kBegin, kEnd), added to the rows' sums: as several chains, since each sum would wait for the one before.
  template <int kBegin, int kEnd>
  __device__ __forceinline__ void weigh() {
    if constexpr (block::has_weight<V>()) return;
    const float shift[2] = {softmax.shift(0, 0, scaling.scale), softmax.shift(0, 1, scaling.scale)};
    float sum[2][2] = {};
#pragma unroll
    for (int n = kBegin; n < kEnd; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& x = s[0][n][i];
        x = ptx::ex2(x * scaling.scale - shift[i / 2]);
        sum[i / 2][i % 2] = n == kBegin ? x : sum[i / 2][i % 2] + x;
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) softmax.sum[0][h] += sum[h][0] + sum[h][1];
  }
  __device__ __forceinline__ void pack() {
#pragma unroll
    for (int n = 0; n < C.key_tiles(); ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) p[n / 2][n % 2 * 2 + h] = ptx::pack_16<C.dtype>(s[0][n][2 * h], s[0][n][2 * h + 1]);
    }
  }

  // A tile is plain if all rows of the warpgroup keep all of its keys, else it is an edge.
  template <bool kEdge>
  __device__ __forceinline__ void start_scores_of(int32_t token) {
    constexpr bool kBiased = kForm == block::Form::biased;
    if (kEdge && pass->masked) warp_make_mask(token);
    if constexpr (kBiased) block::start_biased(s, rows(), 0, keys_of<kEdge>(token), 1.0f / scaling.by.hooks);
    wait_keys();
    start_scores<C, kBiased>(s[0], q, key_tile());
  }
  /// Values of an edge are made fit for the product as soon as they are there.
  __device__ __forceinline__ void prepare_values(int32_t token) {
    wait_values();
    if (!C.gathers() || !gathered || pass->masked) clear_dead_values(token);
  }
  __device__ __forceinline__ void start_values() {
    wait_values();
    start_accumulate<C>(o[0], p, value_tile());
  }
  __device__ __forceinline__ void finish_values() {
    ptx::warpgroup_wait<0>();
    ptx::pinned(o[0]);
    ptx::pinned(p);
    leave_values();
  }

  /// The tile at `token`, and beside it the product of weights and values of the one before.
  template <bool kEdge>
  __device__ __forceinline__ void step(int32_t token) {
    start_scores_of<kEdge>(token);
    start_values();
    ptx::warpgroup_wait<1>();
    ptx::pinned(s[0]);
    leave_keys();
    apply_variant<kEdge>(token);
    typename block::OnlineSoftmax<1>::Rescale rescale;
    bool raised = false;
    if constexpr (!block::has_weight<V>()) {
      const auto tops = lane_tops();
      raised = softmax.warp_must_raise(tops, scaling.slack);
      if (raised) rescale = softmax.raise(tops, scaling.scale, scaling.slack);
      weigh<0, C.key_tiles() / 2>();
      ptx::made_before(softmax.sum[0][0], softmax.sum[0][1], ptx::shared_address(&m.never));
    }
    finish_values();
    if (raised) rescale.apply(o);
    weigh<C.key_tiles() / 2, C.key_tiles()>();
    pack();
    if constexpr (kEdge) prepare_values(token);
  }

  /// The first tile of a pass: there is no product beside it, and O is empty.
  __device__ __forceinline__ void first_step(int32_t token) {
    start_scores_of<true>(token);
    clear();
    prepare_values(token);
    ptx::warpgroup_wait<0>();
    ptx::pinned(s[0]);
    leave_keys();
    apply_variant<true>(token);
    if constexpr (!block::has_weight<V>()) softmax.raise(lane_tops(), scaling.scale, scaling.slack);
    weigh<0, C.key_tiles()>();
    pack();
  }
  /// Makes `next` the pass that is worked on.
  __device__ __forceinline__ void take(Pass<C>& next) {
    pass = &next;
    scaling = next.scaling;
    m.query.wait_full(query_at);
    q.take(ptx::shared_address(m.q), team_row0);
    if constexpr (C.q_in_registers) leave_queries();
    else ptx::fence_shared_async();
  }
  __device__ __forceinline__ void leave_queries() {
    __syncwarp();
    if (lane == 0) ptx::barrier_arrive(ptx::shared_address(&m.query.left[0]));
    query_at.next();
  }
  __device__ __forceinline__ int32_t next_tile(int32_t token) const { return pass->walk.template next<C.tile_kv>(token); }
  /// From the tile after the first to the last that the warpgroup keeps something of, whose product is not started; says where that left off.
  __device__ __forceinline__ int32_t go_on(int32_t token) {
    const Reach reach = pass->reach[team];
#pragma unroll 1
    while (pass->walk.has(token) && token + C.tile_kv > reach.begin) {
      if (token >= reach.plain_begin && token + C.tile_kv <= reach.plain_end) {
#pragma unroll 1
        for (; token >= reach.plain_begin; token -= C.tile_kv) step<false>(token);
        token = next_tile(token + C.tile_kv);
      } else {
        step<true>(token);
        token = next_tile(token);
      }
    }
    return token;
  }
  /// Tiles that only others of the CTA keep something of, from `token` to before `end`.
  __device__ __forceinline__ int32_t pass_by(int32_t token, int32_t end) {
    for (; pass->walk.has(token) && token >= end; token = next_tile(token)) pass_by();
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
