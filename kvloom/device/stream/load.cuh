// The warps that fetch pieces of K and V by boxes, one of them K and the other V, in the order in which they are used: as many are on their
// way as shared memory holds. A box takes a thread some hundred cycles to ask for, and a piece comes every 400 or so.
#pragma once

#include "kvloom/device/block/key_list.cuh"
#include "kvloom/device/ptx/l2.cuh"
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
  const uint64_t policy = ptx::read_once();
  const int lane = int(threadIdx.x) & 31;
  const int box_keys = args.boxes.rows, boxes = C.kPieceKeys / box_keys;  // of a piece: one, or two of 8 keys
  const int together = 32 / boxes;                                        // pieces whose boxes the lanes know at a time

  /// A box of this lane.
  struct Box {
    bool live;        // some row may keep some of its keys; others are not fetched, and their pages not asked for
    int32_t at;       // paged: page; ragged: token
    int32_t in_page;  // token / 8
  };
  /// That of piece `first` + lane / boxes of a pass. `kEarly`: page ids may be written still, and are not to stay in the SM's cache. `kPrefetch`: its page
  /// id is brought near instead.
  template <bool kEarly = false, bool kPrefetch = false>
  __device__ __forceinline__ Box find(const Pass<C>& pass, int32_t first) const {
    const block::TileWalk& walk = pass.walk;
    const int32_t piece = first + lane / boxes, key = piece_token<C>(pass, piece) + lane % boxes * box_keys, end = key + box_keys;
    const bool kept = (key < walk.any_end && end > walk.any_begin) ||
                      (walk.prefix_end > walk.keys.begin && key < walk.prefix_end && end > walk.keys.begin);
    if (piece >= pass.num_pieces || !kept) return {false, 0, 0};
    const block::KeySlot<C.paged> slot(args.attend, pass.group, key);
    if constexpr (C.paged && kPrefetch) {
      ptx::prefetch_line(args.attend.params.pages.at(slot.entry));
      return {false, 0, 0};
    }
    if constexpr (C.paged) return {true, page_at<kEarly>(slot.entry), int32_t(uint32_t(slot.in_page) / 8)};
    return {true, int32_t(slot.entry), 0};
  }
  template <bool kEarly>
  __device__ __forceinline__ int32_t page_at(int64_t entry) const {
    const IndexView& pages = args.attend.params.pages;
    if constexpr (!kEarly) return int32_t(pages[entry]);
    if (pages.is_64) return int32_t(ptx::load_l2(static_cast<const int64_t*>(pages.data) + entry));
    return ptx::load_l2(static_cast<const int32_t*>(pages.data) + entry);
  }
  /// Pieces are a box each.
  __device__ __forceinline__ bool plain() const { return C.paged && boxes == 1 && args.boxes.heads == C.heads; }

  __device__ __forceinline__ uint32_t full(const RingPlace<C.pieces>& to) const { return ptx::shared_address(&m.piece.full[to.at]); }
  __device__ __forceinline__ uint32_t place(const RingPlace<C.pieces>& to) const { return pieces + uint32_t(to.at * C.heads * kHeadBytes); }

  /// A piece of one box, whole pages' tokens; `live`: there is something to fetch. By one thread.
  __device__ __forceinline__ void ask(bool live, int32_t at, int32_t in_page, const RingPlace<C.pieces>& to) const {
    ptx::barrier_arrive_expect(full(to), live ? uint32_t(C.heads * kHeadBytes) : 0);
    if (live) ptx::load_box(place(to), &of.map, full(to), 0, 0, 0, in_page, at, policy);
  }
  /// Pieces i .. end - 1 of those that lanes know, of one box each, whole pages' tokens: what a long list is made of. Of a step's pieces one may have
  /// nothing to fetch. `two`: two at a time where there is room, which short lists gain by (what stands between a box and the next one is as long as an SM
  /// takes to have it), and long ones don't.
  __device__ __forceinline__ void warp_fetch_paged(const Pass<C>& pass, const Box& box, int i, int end, bool two, RingPlace<C.pieces>& to) const {
    const int32_t x = block::box_place(box.at, of, pass.kv_head);
    const uint32_t live = C.step_pieces() > 1 ? __ballot_sync(0xffffffffu, box.live) : ~0u;
    const auto is_live = [&](int i) { return C.step_pieces() == 1 || (live >> i & 1u); };
    if constexpr (C.two_boxes) {
#pragma unroll 1
      for (; two && i + 1 < end; i += 2) {
        RingPlace<C.pieces> second = to;
        second.next();
        const int32_t at0 = __shfl_sync(0xffffffffu, x, i), in_page0 = __shfl_sync(0xffffffffu, box.in_page, i);
        const int32_t at1 = __shfl_sync(0xffffffffu, x, i + 1), in_page1 = __shfl_sync(0xffffffffu, box.in_page, i + 1);
        m.piece.wait_left(to), m.piece.wait_left(second);
        if (ptx::elect_one()) ask(is_live(i), at0, in_page0, to), ask(is_live(i + 1), at1, in_page1, second);
        to = second;
        to.next();
      }
    }
#pragma unroll 1
    for (; i < end; ++i, to.next()) {
      const int32_t at = __shfl_sync(0xffffffffu, x, i), in_page = __shfl_sync(0xffffffffu, box.in_page, i);
      m.piece.wait_left(to);
      if (ptx::elect_one()) ask(is_live(i), at, in_page, to);
    }
    __syncwarp();
  }

  /// Boxes of `heads` heads from `kv_head` on, as many at a time as the map has. By one thread.
  __device__ __forceinline__ void fetch(const Box& box, int kv_head, int heads, int32_t end, uint32_t to, uint32_t full) const {
    const int step = args.boxes.heads;
#pragma unroll 1
    for (int h = 0; h < heads; h += step, to += uint32_t(step * kHeadBytes)) {
      if constexpr (C.paged) {
        ptx::load_box(to, &of.map, full, 0, 0, 0, box.in_page, block::box_place(box.at, of, kv_head + h), policy);
      } else if (box.at + box_keys <= end) {
        ptx::load_box(to, &of.map, full, 0, box.at, 0, 0, kv_head + h, policy);
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
        ptx::load_box(to + uint32_t(k / 8 * Rows::kGroupBytes), &of.eight, full, 0, x + k, 0, 0, kv_head + h, policy);
#pragma unroll 1
      for (; x + k < end; ++k) {
#pragma unroll 1
        for (int b = 0; b * Rows::kBlockChunks < Rows::kChunks; ++b) {
          ptx::load_box(to + uint32_t(k / 8 * Rows::kGroupBytes + b * Rows::kBlockStride + k % 8 * Rows::kBlockBytes), &of.one, full, 0,
                           x + k, b, 0, kv_head + h, policy);
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

  RingPlace<C.pieces> to;

  /// What whoever fetches waits for.
  __device__ __forceinline__ Ring<kPasses>& known() const { return m.keys; }
  /// Makes the first page ids of a pass be near: nothing can be fetched yet.
  __device__ __forceinline__ void warp_look_ahead(const Pass<C>& pass) const { find<false, true>(pass, 0); }
  __device__ __forceinline__ void warp_fetch_pass(const Pass<C>& pass) {
    const int32_t end = C.paged ? 0 : max_of(args.boxes.tokens, int32_t(pass.group.list_begin) + pass.group.kv_end);
    Box next = find(pass, 0);
#pragma unroll 1
    for (int32_t first = 0; first < pass.num_pieces; first += together) {
      const Box box = next;
      const int count = min_of(together, pass.num_pieces - first);
#pragma unroll 1
      for (int i = 0, until = 1; i < count; i = until, until = count) {
        if (plain()) {
          warp_fetch_paged(pass, box, i, until, first == 0, to);
        } else {
#pragma unroll 1
          for (int j = i; j < until; ++j, to.next()) warp_fetch(pass, box, j * boxes, end, to);
        }
        if (i == 0) next = find(pass, first + together);  // on its way while the others are fetched; the first has to wait for nothing
      }
    }
  }
};

/// Page ids of the last keys of what this CTA begins with, which are asked for first, on their way to the L2 cache, where whoever comes for them sees what
/// they are then.
template <AttendConfig C>
__device__ __forceinline__ void warp_prefetch_pages(const AttendArgs& args) {
  if constexpr (!C.paged) return;
  const CtaStart& start = args.starts[blockIdx.x];
  const int32_t kv_begin = start.item.kv_begin, kv_end = start.item.kv_end;
  if (start.items <= 0 || kv_end <= kv_begin) return;
  const IndexView& pages = args.params.pages;
  const int bytes = pages.is_64 ? 8 : 4;
  const int64_t first = start.group.list_begin + args.page_size.divide(uint32_t(kv_begin)), last = start.group.list_begin + args.page_size.divide(uint32_t(kv_end - 1));
  const int64_t entry = last - (int(threadIdx.x) & 31) * (128 / bytes);
  if (entry >= first) ptx::prefetch_line(static_cast<const char*>(pages.data) + entry * bytes);
}

/// The first pieces of a pass, as many as there is room for, on their way to the L2 cache while the kernels in front end: the memory is idle then, and
/// nothing is taken for what it will be before they have.
template <AttendConfig C, class V>
__device__ __forceinline__ void warp_prefetch_pieces(const BoxedAttendArgs& args, SharedMemory<C, V>& m, const Pass<C>& pass) {
  const BoxLoader<C, V, KRows<C>> loader{args, args.boxes.k, m, 0};
  if (!loader.plain() || __any_sync(0xffffffffu, m.begun.is_full({}))) return;
  const auto box = loader.template find<true>(pass, 0);
  const int32_t k = block::box_place(box.at, args.boxes.k, pass.kv_head), v = block::box_place(box.at, args.boxes.v, pass.kv_head);
  const uint32_t live = __ballot_sync(0xffffffffu, box.live);
  const int count = min_of(min_of(C.pieces, 32), pass.num_pieces);
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const int32_t at_k = __shfl_sync(0xffffffffu, k, i), at_v = __shfl_sync(0xffffffffu, v, i), in_page = __shfl_sync(0xffffffffu, box.in_page, i);
    if (__any_sync(0xffffffffu, m.begun.is_full({}))) return;
    if ((live >> i & 1u) && ptx::elect_one()) {
      ptx::prefetch_box(&args.boxes.k.map, 0, 0, 0, in_page, at_k);
      ptx::prefetch_box(&args.boxes.v.map, 0, 0, 0, in_page, at_v);
    }
    __syncwarp();
  }
}

}  // namespace kvloom::stream
