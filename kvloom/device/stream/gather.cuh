// How pieces of K and V are fetched row by row, where pages have no boxes (sizes that 8 doesn't divide): by all warps that load, in turn. A
// row that ranges take from all rows of queries becomes zeros, and its page is not asked for.
#pragma once

#include "kvloom/device/ptx/cp_async.cuh"
#include "kvloom/device/stream/load.cuh"

namespace kvloom::stream {

template <AttendConfig C, class V>
struct RowLoader {
  using Memory = SharedMemory<C, V>;
  const BoxedAttendArgs& args;
  Memory& m;
  const int lane = int(threadIdx.x) & 31, warp = int(threadIdx.x) >> 5;

  static constexpr int kRowWarps = C.kLoaderWarps,
                       kKnown = 32 / C.kPieceKeys * kRowWarps;  // pieces whose keys the lanes of the warps know at a time
  static constexpr uint32_t kNone = ~0u;

  /// Where this lane's key lies, for the pass's first head, in units; kNone: no row keeps it. Of piece `first` and, for the second half of
  /// the lanes, the warp's next one.
  struct Places {
    uint32_t k, v;
  };
  __device__ __forceinline__ Places find(const Pass<C>& pass, int32_t first) const {
    const block::TileWalk& walk = pass.walk;
    const int32_t piece = first + lane / C.kPieceKeys * kRowWarps, key = walk.template tile<C.kPieceKeys>(piece) + lane % C.kPieceKeys;
    if (piece >= pass.num_pieces || key < walk.keys.begin || key >= walk.keys.end || !walk.touches(key)) return {kNone, kNone};
    const block::KeySlot<C.paged> slot(args.attend, pass.group, key);
    const int64_t id = args.attend.params.pages[slot.entry];
    if (block::is_outside(args.attend, id)) return {kNone, kNone};
    const uint32_t page = uint32_t(id), in_page = uint32_t(slot.in_page), head = uint32_t(pass.kv_head);
    const AttendBoxes::Of &k = args.boxes.k, &v = args.boxes.v;
    return {page * uint32_t(k.page_step) + in_page * uint32_t(k.token_step) + head * uint32_t(k.head_step),
            page * uint32_t(v.page_step) + in_page * uint32_t(v.token_step) + head * uint32_t(v.head_step)};
  }

  /// Rows of one head of K or V; lane l has the place of key l % 16 of the piece whose keys begin at lane `first`. `kAll`: no row is
  /// missing.
  template <class Rows, bool kAll>
  __device__ __forceinline__ void warp_copy(const void* base, const AttendBoxes::Of& of, uint32_t place, int first, int head,
                                            uint32_t to) const {
    constexpr int kAtOnce = Rows::kChunks > 16 ? 1 : Rows::kChunks > 8 ? 2 : Rows::kChunks > 4 ? 4 : 8, kEach = C.kPieceKeys / kAtOnce;
    const int mine = lane / Rows::kChunks, row0 = min_of(mine, kAtOnce - 1), chunk = lane % Rows::kChunks;
    const char* const from = static_cast<const char*>(base) + chunk * 16;
    const uint32_t further = uint32_t(head * of.head_step), unit = uint32_t(of.unit);
    constexpr int kTogether = min_of(kEach, 8);  // whose places are asked for together
#pragma unroll 1
    for (int i0 = 0; i0 < kEach; i0 += kTogether) {
      uint32_t at[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) at[i] = __shfl_sync(0xffffffffu, place, first + (i0 + i) * kAtOnce + row0);
      if (mine >= kAtOnce) continue;
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const bool there = kAll || at[i] != kNone;
        ptx::cp_async_16(to + Rows::offset((i0 + i) * kAtOnce + row0, chunk), ptx::address_of(from, there ? at[i] + further : 0, unit),
                         there ? 16 : 0);
      }
    }
  }
  /// A piece of all heads.
  template <bool kAll>
  __device__ __forceinline__ void warp_fetch(const Places& places, int first, int heads, const RingPlace<C.pieces>& to) const {
    const KvView& kv = args.attend.params.kv;
#pragma unroll 1
    for (int h = 0; h < heads; ++h) {
      warp_copy<KRows<C>, kAll>(kv.k, args.boxes.k, places.k, first, h, ptx::shared_address(m.k[to.at]) + uint32_t(h * Memory::kHeadK));
      __syncwarp();
      warp_copy<VRows<C>, kAll>(kv.v, args.boxes.v, places.v, first, h, ptx::shared_address(m.v[to.at]) + uint32_t(h * Memory::kHeadV));
      __syncwarp();
    }
    ptx::cp_async_arrive(ptx::shared_address(&m.piece.full[to.at]));
  }

  /// One of the warps makes passes, one ahead: when all of the pass before has been asked for, and its last pieces are still to be worked
  /// on. Another fetches Q.
  __device__ __forceinline__ void run() const {
    if (warp != kPassWarp || !may_begin_early<V>(args.attend)) ptx::grid_dependency_wait();
    PassMaker<C, V> passes(args.attend, m);  // of the warp that makes them
    if (warp == kPassWarp) passes.warp_make_next();
    ptx::grid_dependency_wait();
    RingPlace<kPasses> at;
    RingPlace<1> query_to;
    RingPlace<C.pieces> to;
    int turn = 0;  // whose the next piece is
#pragma unroll 1
    for (;; at.next(), query_to.next()) {
      if (warp == kPassWarp) passes.warp_make_next();
      m.passes.wait_full(at);
      const Pass<C>& pass = m.pass[at.at];
      if (pass.end) return;
      if (warp == kQueryWarp) warp_load_queries<C, V>(args.attend, m, pass, query_to);
      // Pieces of a pass that are this warp's: those that are its turn, whichever warp has the first.
      const int32_t offset = (warp - turn + kRowWarps) % kRowWarps;
      Places next = find(pass, offset);
#pragma unroll 1
      for (int32_t first = 0; first < pass.num_pieces; first += kKnown) {
        const Places places = next;
        next = find(pass, first + kKnown + offset);
        // Bit of a piece's first lane: all of its keys are there.
        const uint32_t there = __ballot_sync(0xffffffffu, places.k != kNone), low = (there & 0xffffu) == 0xffffu,
                       high = there >> 16 == 0xffffu, all = low | high << 16;
#pragma unroll 1
        for (int i = 0; i < kKnown && first + i < pass.num_pieces; ++i, to.next()) {
          if (i % kRowWarps != offset) continue;
          m.piece.wait_left(to);
          const int from = i / kRowWarps * C.kPieceKeys;
          if (all >> from & 1u)
            warp_fetch<true>(places, from, pass.heads, to);
          else
            warp_fetch<false>(places, from, pass.heads, to);
        }
      }
      turn = (turn + pass.num_pieces) % kRowWarps;
      m.passes.warp_leave(at);
    }
  }
};

}  // namespace kvloom::stream
