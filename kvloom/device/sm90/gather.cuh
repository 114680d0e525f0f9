// How tiles of K and V are fetched row by row, where pages have no boxes (sizes that 8 doesn't divide): by all warps of the loading warpgroup, a quarter of every tile
// each. Where a key's rows lie is worked out once a key; a row that ranges take from all rows of queries becomes zeros, and its page is not
// asked for.
#pragma once

#include "kvloom/device/sm90/load.cuh"

namespace kvloom::sm90 {

inline constexpr int kRowWarps = 4;

/// What a lane copies of a warp's part of a tile: the same 16 bytes of every block of some rows, so that a row's address is worked out once for its
/// blocks. A warp has kAtOnce rows at once, which follow each other, and lane / kLanes says which of them is the lane's.
template <AttendConfig C, class Tile>
struct RowTurns {
  static constexpr int kLanes = Tile::kBlockBytes / 16, kAtOnce = 32 / kLanes, kPartKeys = C.tile_kv / kRowWarps, kRun = kPartKeys / kAtOnce;
  static_assert(kAtOnce % 4 == 0 && kRun % 4 == 0);

  KVLOOM_HD static constexpr int swizzle(int row) { return row / (128 / Tile::kBlockBytes) % kLanes; }
  /// Where RowPlaces has key `key` of a part: a lane's keys side by side.
  KVLOOM_HD static constexpr int place(int key) { return key % kAtOnce * kRun + key / kAtOnce; }
};

/// How far a warp has come with fetching rows.
template <AttendConfig C>
struct RowLoaderProgress {
  RingPlace<kPasses> pass;
  RingPlace<1> query;
  RingPlace<C.stages> keys;
  RingPlace<C.value_stages> values;
  int turn = 0;  // of RowPlaces
};

template <AttendConfig C, class V>
struct RowLoader {
  static constexpr int kPartKeys = C.tile_kv / kRowWarps;
  static_assert(C.ctas == 1 && kPartKeys <= 32);

  const BoxedAttendArgs& args;
  SharedMemory<C, V>& m;
  RowLoaderProgress<C> progress = {};
  const int lane = int(threadIdx.x) & 31, warp = int(threadIdx.x) >> 5;

  /// Keys of a pass that some row keeps: [begin, end), and [first, prefix_end).
  struct Kept {
    int32_t begin, end, first, prefix_end;
    __device__ __forceinline__ explicit Kept(const block::TileWalk& w)
        : begin(max_of(w.keys.begin, w.any_begin)), end(min_of(w.keys.end, w.any_end)), first(w.keys.begin), prefix_end(min_of(w.keys.end, w.prefix_end)) {}
    __device__ __forceinline__ bool has(int32_t key) const { return ((key >= begin) & (key < end)) | ((key >= first) & (key < prefix_end)); }
  };
  using Asked = block::AskedKey;
  /// This lane's key of a tile.
  __device__ __forceinline__ Asked ask(const Pass<C>& pass, const Kept& kept, int32_t token) const {
    const int32_t key = token + warp * kPartKeys + lane;
    if (lane >= kPartKeys || !kept.has(key)) return {0, -1};
    return block::ask_key<C.paged>(args.attend, pass.group, key);
  }
  /// Its place, for all lanes; true if every key has one.
  __device__ __forceinline__ bool warp_place(const Asked& asked, int kv_head, RowPlaces<C>& places) const {
    const bool there = block::is_there(args.attend, asked);
    if (lane < kPartKeys) {
      const int first = warp * kPartKeys;
      places.k[first + RowTurns<C, KTile<C>>::place(lane)] = there ? block::row_place(asked, args.boxes.k, kv_head) : RowPlaces<C>::kNone;
      places.v[first + RowTurns<C, VTile<C>>::place(lane)] = there ? block::row_place(asked, args.boxes.v, kv_head) : RowPlaces<C>::kNone;
    }
    const bool all = __all_sync(0xffffffffu, there || lane >= kPartKeys);
    __syncwarp();
    return all;
  }

  /// Starts the copies of this warp's part of a tile. `kAll`: no row is missing.
  template <class Tile, bool kAll>
  __device__ __forceinline__ void warp_copy(const char* base, uint32_t unit, const uint32_t (&places)[RowPlaces<C>::kKeys], uint32_t tile) const {
    using Turns = RowTurns<C, Tile>;
    const int at = lane / Turns::kLanes, chunk = lane % Turns::kLanes, row0 = warp * kPartKeys;
    const char* const from = ptx::kept(base + chunk * 16);
    uint4 place[Turns::kRun / 4];  // all of them first: reads of shared memory among the copies would stop those
#pragma unroll
    for (int i = 0; i < Turns::kRun / 4; ++i) place[i] = reinterpret_cast<const uint4*>(places + row0 + at * Turns::kRun)[i];
    const uint32_t to0 = tile + Tile::row(row0) + uint32_t(at * Tile::kBlockBytes + ((chunk ^ Turns::swizzle(at)) << 4));
#pragma unroll
    for (int i = 0; i < Turns::kRun; ++i) {
      const uint4& four = place[i / 4];
      const uint32_t row = i % 4 == 0 ? four.x : i % 4 == 1 ? four.y : i % 4 == 2 ? four.z : four.w;
      const bool there = kAll || row != RowPlaces<C>::kNone;
      const char* const key = ptx::address_of(from, there ? row : 0, unit);
      const uint32_t to = (to0 ^ uint32_t(Turns::swizzle(i * Turns::kAtOnce) << 4)) + Tile::row(i * Turns::kAtOnce);
#pragma unroll
      for (int b = 0; b < Tile::kBlocks; ++b) {
        ptx::cp_async_16(to + uint32_t(b * Tile::kBlockStride), key + b * Tile::kBlockBytes, there ? 16 : 0);
      }
    }
  }
  /// ... of K or V; every lane arrives at `full` when its own have landed.
  template <class Tile>
  __device__ __forceinline__ void warp_fetch(const void* base, const AttendBoxes::Of& of, const uint32_t (&places)[RowPlaces<C>::kKeys], bool all, uint32_t tile,
                                             uint32_t full) const {
    if (all) warp_copy<Tile, true>(static_cast<const char*>(base), uint32_t(of.unit), places, tile);
    else warp_copy<Tile, false>(static_cast<const char*>(base), uint32_t(of.unit), places, tile);
    __syncwarp();
    ptx::cp_async_arrive(full);
  }

  __device__ __forceinline__ Ring<kPasses>& known() const { return m.passes; }

  /// This warp's part of a pass; one of the warps fetches Q. Values of a tile are asked for behind those keys that are used before them: where V has a
  /// place more than K, of the same tile, which are there a step early then; else of the next one, the order of TileLoader.
  __device__ __forceinline__ void warp_fetch_pass(const Pass<C>& pass) {
    const KvView& kv = args.attend.params.kv;
    constexpr bool kValuesLate = C.value_stages == C.stages;
    RingPlace<C.stages>& to = progress.keys;
    RingPlace<C.value_stages>& values_to = progress.values;
    int& turn = progress.turn;
    if (warp == kLoaderWarps + 1) warp_load_queries<C, V>(args, m, pass, progress.query);
    progress.query.next();
    int32_t token = pass.walk.start;
    const Kept kept(pass.walk);
    bool all = warp_place(ask(pass, kept, token), pass.kv_head, m.places[turn]), all_before = false;
    const auto fetch_values = [&](const RowPlaces<C>& places, bool all_of) {
      m.values.wait_left(values_to);
      warp_fetch<VTile<C>>(kv.v, args.boxes.v, places.v, all_of, ptx::shared_address(m.v[values_to.at]), ptx::shared_address(&m.values.full[values_to.at]));
      values_to.next();
    };
#pragma unroll 1
    for (bool first = true; pass.walk.has(token); first = false) {
      token = pass.walk.template next<C.tile_kv>(token);
      const Asked asked = ask(pass, kept, token);  // on its way while this tile is copied
      m.keys.wait_left(to);
      warp_fetch<KTile<C>>(kv.k, args.boxes.k, m.places[turn].k, all, ptx::shared_address(m.k[to.at]), ptx::shared_address(&m.keys.full[to.at]));
      to.next();
      if constexpr (!kValuesLate) fetch_values(m.places[turn], all);
      else if (!first) fetch_values(m.places[turn ^ 1], all_before);
      turn ^= 1;
      all_before = all;
      all = warp_place(asked, pass.kv_head, m.places[turn]);
    }
    if (kValuesLate && pass.walk.has(pass.walk.start)) fetch_values(m.places[turn ^ 1], all_before);
  }

  /// One of the warps makes passes, one ahead: when all of the pass before has been asked for, and its last tiles are still to be worked on.
  __device__ __forceinline__ void run() {
    block::Passes<PassMaker<C, V>> passes(args.attend, m);
    RingPlace<kPasses>& at = progress.pass;
#pragma unroll 1
    for (bool ahead = false;; ahead = true) {
      if (warp == kLoaderWarps) passes.warp_make_next();
      if (!ahead) continue;
      m.passes.wait_full(at);
      const Pass<C>& pass = m.pass[at.at];
      if (pass.end) return;
      warp_fetch_pass(pass);
      m.passes.warp_leave(at);
      at.next();
    }
  }
};

}  // namespace kvloom::sm90
