// How pieces of K and V are fetched row by row, where pages have no boxes (sizes that 8 doesn't divide): by all warps that load, in turn. A
// row that ranges take from all rows of queries becomes zeros, and its page is not asked for.
#pragma once

#include "kvloom/device/ptx/cp_async.cuh"
#include "kvloom/device/stream/load.cuh"

namespace kvloom::stream {

/// How far a warp has come with fetching rows.
template <AttendConfig C>
struct RowLoaderProgress {
  RingPlace<kPasses> pass;
  RingPlace<1> query;
  RingPlace<C.pieces> piece;  // this warp's next one
  int32_t next;               // its number, counted from the beginning of the pass

  __device__ __forceinline__ explicit RowLoaderProgress(int warp) : piece{warp, 0}, next(warp) {}
};

template <AttendConfig C, class V>
struct RowLoader {
  using Memory = SharedMemory<C, V>;
  const BoxedAttendArgs& args;
  Memory& m;
  RowLoaderProgress<C> progress = RowLoaderProgress<C>(int(threadIdx.x) >> 5);
  const int lane = int(threadIdx.x) & 31, warp = int(threadIdx.x) >> 5;

  static constexpr int kRowWarps = C.kLoaderWarps;
  static constexpr int kHalves = 32 / C.kPieceKeys;  // a piece takes so many lanes: a half, if that is 2
  static constexpr int kStep = kHalves * kRowWarps;  // pieces from one that a lane has a key of to the next
  static constexpr uint32_t kNone = ~0u;
  static_assert(C.pieces >= kRowWarps);

  using Asked = block::AskedKey;
  /// This lane's key: of piece `first` and, for the second half of the lanes, the warp's next one.
  __device__ __forceinline__ Asked ask(const Pass<C>& pass, const block::TileWalk& walk, int32_t num_pieces, int32_t first) const {
    const int32_t piece = first + lane / C.kPieceKeys * kRowWarps, key = piece_token<C>(pass, piece) + lane % C.kPieceKeys;
    if (piece >= num_pieces || key < walk.keys.begin || key >= walk.keys.end || !walk.touches(key)) return {0, -1};
    return block::ask_key<C.paged>(args.attend, pass.group, key);
  }
  /// Where its rows begin, for the pass's first head, in units; kNone: zeros instead.
  struct Places {
    uint32_t k, v;
  };
  __device__ __forceinline__ Places find(const Asked& key, int kv_head) const {
    if (!block::is_there(args.attend, key)) return {kNone, kNone};
    return {block::row_place(key, args.boxes.k, kv_head), block::row_place(key, args.boxes.v, kv_head)};
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

  /// What says that a pass can be begun with: whoever fetches Q has to know all rows.
  __device__ __forceinline__ Ring<kPasses>& known() const { return warp == kQueryWarp ? m.passes : m.keys; }

  /// This warp's pieces of a pass; one of the warps fetches Q.
  __device__ __forceinline__ void warp_fetch_pass(const Pass<C>& pass) {
    RingPlace<C.pieces>& to = progress.piece;
    int32_t& next = progress.next;
    if (warp == kQueryWarp && warp_load_queries<C, V>(args.attend, m, pass, progress.query)) progress.query.next();
    const block::TileWalk& walk = pass.walk;
    const int32_t count = pass.num_pieces;
    // Page ids are there when the warps have asked for as much as the ring holds: memory that is kept busy takes that long to answer.
    Asked ahead[2] = {ask(pass, walk, count, next), ask(pass, walk, count, next + kStep)};
#pragma unroll 1
    while (next < count) {
      const Places known[2] = {find(ahead[0], pass.kv_head), find(ahead[1], pass.kv_head)};
      const uint32_t gone[2] = {__ballot_sync(0xffffffffu, known[0].k == kNone), __ballot_sync(0xffffffffu, known[1].k == kNone)};
      const int32_t after = next + 2 * kStep;
#pragma unroll 1
      for (int i = 0; i < 2 * kHalves && next < count; ++i) {
        m.piece.wait_left(to);
        const bool low = i < kHalves;
        const Places places{low ? known[0].k : known[1].k, low ? known[0].v : known[1].v};
        const int first = i % kHalves * C.kPieceKeys;
        if (((low ? gone[0] : gone[1]) >> first & ((1u << C.kPieceKeys) - 1)) == 0)
          warp_fetch<true>(places, first, pass.heads, to);
        else
          warp_fetch<false>(places, first, pass.heads, to);
        next += kRowWarps, to.at += kRowWarps;
        if (to.at >= C.pieces) to.at -= C.pieces, to.parity ^= 1;
        if (i == 0) ahead[0] = ask(pass, walk, count, after);
        if (i == 1) ahead[1] = ask(pass, walk, count, after + kStep);
      }
    }
    next -= count;
  }

  /// One of the warps makes passes, one ahead: when all of the pass before has been asked for, and its last pieces are still to be worked
  /// on.
  __device__ __forceinline__ void run() {
    if (warp != kPassWarp || !may_begin_early<V>(args.attend)) ptx::grid_dependency_wait();
    block::Passes<PassMaker<C, V>> passes(args.attend, m, warp == kPassWarp ? block::start_word(args.attend) : 0);  // of the warp that makes them
    if (warp == kPassWarp) passes.warp_make_next();
    ptx::grid_dependency_wait();
    RingPlace<kPasses>& at = progress.pass;
#pragma unroll 1
    for (;; at.next()) {
      if (warp == kPassWarp) passes.warp_make_next();
      known().wait_full(at);
      const Pass<C>& pass = m.pass[at.at];
      if (pass.end) return;
      warp_fetch_pass(pass);
      m.passes.warp_leave(at);
    }
  }
};

}  // namespace kvloom::stream
