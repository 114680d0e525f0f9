// attend, family stream: few rows of queries, and K and V as fast as memory gives them (sm_90 and up). Some warps fetch pieces of K and V
// without ever waiting for those who use them, as long as there is room; eight warps work on them. Each takes whole pieces of one KV head
// in turn, one a step, or two neighbours: scores, variant and mask, softmax, accumulate, without a barrier among them until the item ends (store.cuh).
#pragma once

#include "kvloom/device/sm80/tile_step.cuh"
#include "kvloom/device/stream/load.cuh"

namespace kvloom::stream {

/// `kMany`: of an item with many rows (many.cuh): this warp has 16 of them, and half of their dims.
template <AttendConfig C, class V, bool kMany = false>
struct Warp {
  using Memory = SharedMemory<C, V>;
  static constexpr sm80::AttendConfig S = C.step();
  static constexpr block::Form kForm = block::form_of<V>(C.fixed_split);
  static constexpr int kStepPieces = C.step_pieces(), kStepKeys = C.step_keys();
  static constexpr int kDimTiles = C.head_dim_vo / (kMany ? 16 : 8);  // n8 tiles of O that this warp has
  static_assert(C.pieces % C.turn_pieces() == 0, "a place is always the same warp's: one that is ahead would take an old phase for its own");

  const AttendArgs& args;
  Memory& m;
  const int lane = int(threadIdx.x) & 31, warp = ptx::uniform(int(threadIdx.x) >> 5) - C.kLoaderWarps;
  const int head = warp % C.heads;  // of the pass's heads
  const int row0 = kMany ? warp % C.kManyWarps * 16 : 0, half = kMany ? warp / C.kManyWarps : 0;  // of the pass's rows; of O's dims

  // Of the moment.
  Pass<C>* pass;
  RingPlace<1>& query_at;
  RingPlace<C.pieces>& at;  // this warp's next pieces
  int32_t& next;            // its step's number, counted from the beginning of the pass
  sm80::Queries<S, C.fp8()> q;
  typename sm80::Select<block::has_key<V>(), sm80::Queries<S, C.fp8()>, NoQueries>::Type q_back;  // turned.cuh
  bool turns;                                                                                     // keys, in registers
  sm80::WarpState<S, kDimTiles> state;
  QueryFactors<C> factors;  // of the lane's rows
  int folded = 0;           // fixed_split: which of SharedMemory::folded is to be read

  // From a tile's address to the lane's.
  const uint32_t lane_k = ptx::kept(sm80::Keys<S, C.fp8(), S.key_tiles()>::lane_offset(0)),
                 lane_v = ptx::kept(first_values(sm80::Values<S, kDimTiles>::lane_offset(0)));

  __device__ __forceinline__ Warp(const AttendArgs& a, Memory& memory, WarpPlaces<C>& places)
      : args(a), m(memory), query_at(places.query), at(places.piece), next(places.next),
        q(ptx::shared_address(memory.q) + uint32_t(head * Memory::kHeadQ), kMany ? row0 : 0), q_back(ptx::shared_address(memory.q_back), 0) {}

  /// From the lane's address in a row of V to that of the warp's first dim.
  __device__ __forceinline__ uint32_t first_values(uint32_t offset) const {
    if constexpr (!kMany) return offset;
    constexpr int kChunk = kDimTiles, kBlock = VRows<C>::kBlockChunks;  // a tile of 16-bit values is a chunk
    static_assert(!kMany || kChunk % kBlock == 0 || kBlock % kChunk == 0, "chunks of a half add to its first one without a carry");
    return half == 0 ? offset : (offset ^ uint32_t(kChunk % kBlock << 4)) + uint32_t(kChunk / kBlock * VRows<C>::kBlockStride);
  }
  __device__ __forceinline__ block::Rows rows() const {
    if constexpr (!kMany) return pass->rows(head);
    block::Rows r = pass->rows(head);
    r.row += row0, r.kept += row0;
    return r;
  }
  __device__ __forceinline__ const block::Scaling& scaling() const { return pass->scaling[head]; }
  __device__ __forceinline__ void leave_queries() { m.query.warp_leave(query_at); }
  __device__ __forceinline__ void wait_pieces() {
#pragma unroll
    for (int i = 0; i < kStepPieces; ++i) m.piece.wait_full({at.at + i, at.parity});
  }
  __device__ __forceinline__ void leave_pieces() {
    __syncwarp();
    if constexpr (C.many) {  // as many arrivals as if all warps had used it
      for (int i = lane; i < C.kWarps * block::kArrivingLanes; i += 32) ptx::barrier_arrive(ptx::shared_address(&m.piece.left[at.at]));
    } else if constexpr (block::kArrivingLanes == 1) {
      if (lane < kStepPieces) ptx::barrier_arrive(ptx::shared_address(&m.piece.left[at.at + lane]));
    } else {
      for (int i = 0; i < kStepPieces; ++i) ptx::barrier_arrive(ptx::shared_address(&m.piece.left[at.at + i]));
    }
    at.at += C.turn_pieces(), next += C.head_warps();
    if (at.at >= C.pieces) at.at -= C.pieces, at.parity ^= 1;
  }

  /// What all of the head's rows keep of the step at `token`, where ranges don't say it.
  __device__ __forceinline__ void make_mask(int32_t token) {
    auto& mask = m.mask[warp];
    const block::KeySpan& keys = pass->walk.keys;
    __syncwarp();
    if (block::mask_needs_positions<V>(pass->group)) {
      mask.pos[lane] = block::position_of<C.paged>(args, pass->group, clamp_to(token + lane, keys.begin, max_of(keys.begin, keys.end - 1)));
      __syncwarp();
    }
    block::warp_make_mask<V, kStepKeys, false>(args.params.variant, pass->group, pass->rows(head),
                                           block::RowRuns::of<V>(args.group_size, pass->item.row_begin, pass->item.row_count),
                                           pass->kv_head + head, token, mask);
  }
  /// Values of keys that no row keeps are whatever is there: zeros instead, before they are multiplied by weights of zero.
  __device__ __forceinline__ void clear_dead_values(uint32_t values, int32_t token) const {
    const block::TileWalk& walk = pass->walk;
    const int32_t key = token + lane;
    uint32_t dead =
        __ballot_sync(0xffffffffu, lane < kStepKeys && (key < walk.keys.begin || key >= walk.keys.end || !walk.touches(key)));
    if (pass->masked) dead = ~m.mask[warp].live[0] & (~0u >> (32 - kStepKeys));
    if (dead == 0) return;
#pragma unroll 1
    for (; dead != 0; dead &= dead - 1) {
      const int row = __ffs(int(dead)) - 1;
      const uint32_t piece = values + uint32_t(row / C.kPieceKeys * int(sizeof m.v[0]));
      for (int chunk = lane; chunk < VRows<C>::kChunks; chunk += 32)
        ptx::store_shared_16(piece + VRows<C>::offset(row % C.kPieceKeys, chunk), make_uint4(0, 0, 0, 0));
    }
    ptx::fence_shared_async();  // boxes come here later
    __syncwarp();
    // Warps with rows of one item write the same zeros, each before it reads: no order is wanted of them, but by racecheck.
    if constexpr (kMany && block::kArrivingLanes != 1) ptx::named_barrier_sync(kComputeBarrier, 32 * C.kWarps);
  }

  __device__ __forceinline__ void add_products(float (&s)[1][S.key_tiles()][4], const sm80::TileView<S>& tile) {
    if constexpr (block::has_key<V>()) {
      const VariantParams& p = args.params.variant;
      if (turns && p.rope.mode == RopeMode::half_split) return warp_turned_scores<S, V, true>(s, q, q_back, tile.k, p, m.turns, tile.keys.pos0);
      if (turns) return warp_turned_scores<S, V, false>(s, q, q_back, tile.k, p, m.turns, tile.keys.pos0);
      warp_turn_keys<C, V>(p, m, tile.keys, m.k[at.at] + head * Memory::kHeadK);
    }
    sm80::warp_scores<S, C.fp8(), S.key_tiles()>(s, q, tile.k);
  }

  /// The pieces from `token` on, which are there.
  __device__ __forceinline__ void step(int32_t token) {
    const bool masked = pass->masked;
    if constexpr (C.fixed_split) {  // a turn is whole, its steps may have nothing
      const block::TileWalk& walk = pass->walk;
      if ((token >= walk.any_end || token + kStepKeys <= walk.any_begin) && token >= walk.prefix_end) return;
    }
    if (masked) make_mask(token);
    const auto& mask = m.mask[warp];
    if (masked && mask.live[0] == 0) return;
    const uint32_t values = ptx::shared_address(m.v[at.at]) + uint32_t(head * Memory::kHeadV);
    sm80::TileView<S> tile;
    tile.k = ptx::shared_address(m.k[at.at]) + uint32_t(head * Memory::kHeadK) + lane_k;
    tile.v = values + lane_v;
    tile.keys = {&pass->group, token, 0, pass->kv_head + head, pass->group.kv_pos0 + token,
                 masked && pass->group.kv_position != KvPosition::linear ? mask.pos : nullptr, masked ? mask.word + (kMany ? row0 : 0) : nullptr, 0, kStepKeys, 1};
    tile.rows = rows();
    tile.row0 = 0;
    tile.turns = nullptr;
    tile.cut = masked ? mask.full == 0 : token < pass->hull.all_begin || token + kStepKeys > pass->hull.all_end;
    sm80::Scores<S> x;
    if constexpr (kForm == block::Form::biased) {
      block::start_biased(x.s, tile.rows, 0, tile.keys, 1.0f / scaling().by.hooks);
      factors.divide(x.s);
    } else {
      sm80::clear_scores(x.s);
    }
    add_products(x.s, tile);
    factors.multiply(x.s);
    block::warp_apply_variant<V, kForm, true>(x.s, args.params.variant, scaling().by, tile.rows, 0, tile.keys, tile.cut);
    if constexpr (!block::has_weight<V>()) {
      const auto tops = state.softmax.tops(x.s);
      if (state.softmax.warp_must_raise(tops, scaling().slack)) state.softmax.raise(tops, scaling().scale, scaling().slack).apply(state.o);
    }
    sm80::weigh<S, V>(x, state, scaling().scale);
    if (tile.cut) clear_dead_values(values, token);
    sm80::warp_accumulate<S, S.key_tiles() / 2, kDimTiles>(state.o, x.p, tile.v);
  }

  /// This warp's share of a pass.
  __device__ __forceinline__ void attend(Pass<C>& now, block::Marks& marks) {
    pass = &now;
    if (begins_rows()) {
      m.query.wait_full(query_at);
      q.hold();
      if constexpr (block::has_key<V>()) {
        turns = turns_in_registers<C, V>(args.params.variant, pass->group);
        if (turns) q_back.hold();
      }
      factors.take(m.q_factor + (C.fp8() ? head * C.kRows : 0));
      if constexpr (C.q_in_registers) leave_queries();
    }
    state.clear();
    const int32_t count = pass->num_pieces / kStepPieces;
    if constexpr (block::kMarks) {
      if (next < count) wait_pieces();
      marks.fed();
    }
#pragma unroll 1
    while (next < count) {
      wait_pieces();
      if (head < pass->heads) step(pass->walk.template tile<kStepKeys>(next));
      leave_pieces();
    }
    marks.attended();
    next -= count;
    if (ends_rows()) {
      if constexpr (!C.q_in_registers) leave_queries();
      query_at.next();
    }
  }

 private:
  __device__ __forceinline__ bool begins_rows() const {
    if constexpr (C.fixed_split) return pass->new_rows;
    return true;
  }
  __device__ __forceinline__ bool ends_rows() const {
    if constexpr (C.fixed_split) return pass->last_of_rows;
    return true;
  }
};

}  // namespace kvloom::stream
