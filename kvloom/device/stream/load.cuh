// The warps that fetch pieces of K and V by boxes, one of them K and the other V, in the order in which they are used: as many are on their
// way as shared memory holds. A box takes a thread some hundred cycles to ask for, and a piece comes every 400 or so.
#pragma once

#include "kvloom/device/block/key_list.cuh"
#include "kvloom/device/ptx/roles.cuh"
#include "kvloom/device/ptx/tma.cuh"
#include "kvloom/device/stream/items.cuh"

namespace kvloom::stream {

/// `Rows`: of K or V.
template <AttendConfig C, class V, class Rows>
struct BoxLoader {
  static constexpr int kHeadBytes = Rows::bytes(C.kPieceKeys);
  const BoxedAttendArgs& args;
  const AttendBoxes::Of& of;
  SharedMemory<C, V>& m;
  const uint32_t pieces;  // shared: the first of them
  const int lane = int(threadIdx.x) & 31;
  const int box_keys = args.boxes.rows, boxes = C.kPieceKeys / box_keys;  // of a piece: one, or two of 8 keys
  const int together = 32 / boxes;                                        // pieces whose boxes the lanes know at a time

  /// A box of this lane.
  struct Box {
    bool live;        // some row may keep some of its keys; others are not fetched, and their pages not asked for
    int32_t at;       // paged: page; ragged: token
    int32_t in_page;  // token / 8
  };
  /// That of piece `first` + lane / boxes of a pass.
  __device__ __forceinline__ Box find(const Pass<C>& pass, int32_t first) const {
    const block::TileWalk& walk = pass.walk;
    const int32_t piece = first + lane / boxes, key = piece_token<C>(pass, piece) + lane % boxes * box_keys, end = key + box_keys;
    const bool kept = (key < walk.any_end && end > walk.any_begin) ||
                      (walk.prefix_end > walk.keys.begin && key < walk.prefix_end && end > walk.keys.begin);
    if (piece >= pass.num_pieces || !kept) return {false, 0, 0};
    const block::KeySlot<C.paged> slot(args.attend, pass.group, key);
    if constexpr (C.paged) return {true, int32_t(args.attend.params.pages[slot.entry]), int32_t(uint32_t(slot.in_page) / 8)};
    return {true, int32_t(slot.entry), 0};
  }

  __device__ __forceinline__ uint32_t full(const RingPlace<C.pieces>& to) const { return ptx::shared_address(&m.piece.full[to.at]); }
  __device__ __forceinline__ uint32_t place(const RingPlace<C.pieces>& to) const { return pieces + uint32_t(to.at * C.heads * kHeadBytes); }

  /// `count` pieces of one box each, whole pages' tokens: what a long list is made of. Of a step's pieces one may have nothing to fetch.
  __device__ __forceinline__ void warp_fetch_paged(const Pass<C>& pass, const Box& box, int count, RingPlace<C.pieces>& to) const {
    const int32_t x = block::box_place(box.at, of, pass.kv_head);
    const uint32_t live = C.step_pieces() > 1 ? __ballot_sync(0xffffffffu, box.live) : ~0u;
#pragma unroll 1
    for (int i = 0; i < count; ++i, to.next()) {
      const int32_t at = __shfl_sync(0xffffffffu, x, i), in_page = __shfl_sync(0xffffffffu, box.in_page, i);
      m.piece.wait_left(to);
      if (ptx::elect_one()) {
        ptx::barrier_arrive_expect(full(to), live >> i & 1u ? uint32_t(C.heads * kHeadBytes) : 0);
        if (live >> i & 1u) ptx::load_box<1>(place(to), &of.map, full(to), 0, 0, 0, in_page, at);
      }
    }
    __syncwarp();
  }

  /// Boxes of `heads` heads from `kv_head` on, as many at a time as the map has. By one thread.
  __device__ __forceinline__ void fetch(const Box& box, int kv_head, int heads, int32_t end, uint32_t to, uint32_t full) const {
    const int step = args.boxes.heads;
#pragma unroll 1
    for (int h = 0; h < heads; h += step, to += uint32_t(step * kHeadBytes)) {
      if constexpr (C.paged) {
        ptx::load_box<1>(to, &of.map, full, 0, 0, 0, box.in_page, block::box_place(box.at, of, kv_head + h));
      } else if (box.at + box_keys <= end) {
        ptx::load_box<1>(to, &of.map, full, 0, box.at, 0, 0, kv_head + h);
      } else {
        fetch_end(to, full, box.at, end, kv_head + h, step);
      }
    }
  }
  /// The box at token `x` as far as there are tokens, which is before `end`.
  __device__ __forceinline__ void fetch_end(uint32_t to, uint32_t full, int32_t x, int32_t end, int kv_head, int heads) const {
#pragma unroll 1
    for (int h = 0; h < heads; ++h, to += kHeadBytes) {
      int k = 0;
#pragma unroll 1
      for (; x + k + 8 <= end; k += 8)
        ptx::load_box<1>(to + uint32_t(k / 8 * Rows::kGroupBytes), &of.eight, full, 0, x + k, 0, 0, kv_head + h);
#pragma unroll 1
      for (; x + k < end; ++k) {
#pragma unroll 1
        for (int b = 0; b * Rows::kBlockChunks < Rows::kChunks; ++b) {
          ptx::load_box<1>(to + uint32_t(k / 8 * Rows::kGroupBytes + b * Rows::kBlockStride + k % 8 * Rows::kBlockBytes), &of.one, full, 0,
                           x + k, b, 0, kv_head + h);
        }
      }
    }
  }

  /// The piece whose boxes lanes [first, first + boxes) know. `end`: ragged, of the tokens that can be read.
  __device__ __forceinline__ void warp_fetch(const Pass<C>& pass, const Box& box, int first, int32_t end,
                                             const RingPlace<C.pieces>& to) const {
    const int heads = args.boxes.heads > 1 ? C.heads : pass.heads;  // that are really fetched: whole boxes
    const uint32_t live = __ballot_sync(0xffffffffu, box.live);
    Box mine[2];
    int keys = 0;  // that come
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      const int from = min_of(first + b, 31);
      mine[b] = {b < boxes && (live >> from & 1u), __shfl_sync(0xffffffffu, box.at, from), __shfl_sync(0xffffffffu, box.in_page, from)};
      if (mine[b].live) keys += C.paged ? box_keys : clamp_to(end - mine[b].at, 0, box_keys);
    }
    m.piece.wait_left(to);
    if (ptx::elect_one()) {
      ptx::barrier_arrive_expect(full(to), uint32_t(keys * heads * Rows::kChunks * 16));
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        if (mine[b].live) fetch(mine[b], pass.kv_head, heads, end, place(to) + uint32_t(b * Rows::kGroupBytes), full(to));
      }
    }
    __syncwarp();
  }

  __device__ __forceinline__ void run() const {
    RingPlace<kPasses> at;
    RingPlace<C.pieces> to;
    const bool plain = C.paged && boxes == 1 && args.boxes.heads == C.heads;
#pragma unroll 1
    for (;; at.next()) {
      m.passes.wait_full(at);
      const Pass<C>& pass = m.pass[at.at];
      if (pass.end) return;
      const int32_t end = C.paged ? 0 : max_of(args.boxes.tokens, int32_t(pass.group.list_begin) + pass.group.kv_end);
      Box next = find(pass, 0);
#pragma unroll 1
      for (int32_t first = 0; first < pass.num_pieces; first += together) {
        const Box box = next;
        next = find(pass, first + together);  // on its way while these are fetched
        const int count = min_of(together, pass.num_pieces - first);
        if (plain) {
          warp_fetch_paged(pass, box, count, to);
        } else {
#pragma unroll 1
          for (int i = 0; i < count; ++i, to.next()) warp_fetch(pass, box, i * boxes, end, to);
        }
      }
      m.passes.warp_leave(at);
    }
  }
};

}  // namespace kvloom::stream
