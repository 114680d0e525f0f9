// Shared memory of a CTA of the stream family, and the barriers in it.
#pragma once

#include "kvloom/contract/attend_boxes.h"
#include "kvloom/device/block/fold.cuh"
#include "kvloom/device/block/ring.cuh"
#include "kvloom/device/block/scaling.cuh"
#include "kvloom/device/block/tile_walk.cuh"
#include "kvloom/device/sm80/shared.cuh"
#include "kvloom/device/stream/config.h"

namespace kvloom::stream {

using block::Ring;
using block::RingPlace;

inline constexpr int kComputeBarrier = 1;  // of all warps that compute
// Warps that load: one goes through the items, one fetches Q, two fetch K and V by boxes; where keys come one by one, all do.
inline constexpr int kKeyWarp = 0, kPassWarp = 2, kQueryWarp = 3;
inline constexpr int kFirstTurnWarp = 2, kTurnWarps = 2;  // of those that compute, find out turns of fused RoPE; not on the schedulers of those who fetch K and V
inline constexpr int kPasses = 3;  // known at a time: the one that is worked on and the next ones

/// fixed_split: a pass is a chunk of an item for some KV heads, and what was folded of the chunks before it is in shared memory.
template <bool kFixed>
struct Chunk {};
template <>
struct Chunk<true> {
  bool begins;          // nothing is folded before it
  bool written;         // what has been folded goes out behind it
  bool new_rows;        // Q is fetched; else it is that of the pass before
  bool last_of_rows;    // the next pass has other rows
  int32_t partial_row;  // of the first row of what is written and the item's first head; -1: final
};

/// A pass over keys of an item, for some neighbouring KV heads, as all warps of the CTA know it: made by the warp that goes through the
/// items.
template <AttendConfig C>
struct Pass : Chunk<C.fixed_split> {
  WorkItem item;
  RowGroup group;
  block::TileWalk walk;  // steps
  block::KeptHull hull;
  int32_t kv_head, heads;  // the first, and how many
  int32_t num_pieces;
  bool masked;  // masks are to be made; else ranges say it all
  bool last;    // of the item
  bool end;     // there are no more items
  bool more;    // of an end: another kernel's come next (device/mixed)
  block::Scaling scaling[C.heads];
  block::KeptTokens kept[C.pass_rows()];
  block::PackedRow row[C.heads * C.pass_rows()];  // of the first head, of the next, ...
  block::UnitAhead unit;  // the first that the item touches, if any; there a little later (SharedMemory::units)
  alignas(8) MergeEntry entry[C.entries_ahead];  // its partials, if the item touches no other and they are not more: its entries then begin at 0
  bool knows_entries;
  block::Touches arrive;  // units to arrive at behind the pass

  __device__ __forceinline__ block::Rows rows(int head) { return {row + head * C.kRows, kept, &hull}; }
};

/// True if a pass is of an item with many rows.
template <AttendConfig C>
__device__ __forceinline__ bool has_many_rows(const Pass<C>& pass) {
  if constexpr (C.many) return pass.item.kernel_class == 1;
  return false;
}

/// The first key of piece `piece` of a pass, in list tokens. Where rows are many, all warps do all pieces: first those that one warp would have done by
/// itself, then the next one's.
template <AttendConfig C>
__device__ __forceinline__ int32_t piece_token(const Pass<C>& pass, int32_t piece) {
  const block::TileWalk& walk = pass.walk;
  if (has_many_rows(pass)) {
    const uint32_t turns = max_of(1u, uint32_t(pass.num_pieces) / uint32_t(C.turn_pieces()));
    piece = int32_t(uint32_t(piece) % turns * uint32_t(C.turn_pieces()) + uint32_t(piece) / turns);
  }
  constexpr uint32_t kTogether = uint32_t(C.step_pieces());
  const uint32_t step = uint32_t(piece) / kTogether, part = uint32_t(piece) % kTogether;
  return walk.template tile<C.step_keys()>(int32_t(step)) + int32_t(part) * C.kPieceKeys;
}

template <AttendConfig C>
using KRows = tile::BoxRows<C.head_dim_qk * size_of(C.kv_dtype)>;
template <AttendConfig C>
using VRows = tile::BoxRows<C.head_dim_vo * size_of(C.kv_dtype)>;
template <AttendConfig C>
using QRows = tile::SwizzledRows<C.head_dim_qk * 2>;

/// What has been folded, of all rows of a pass.
template <AttendConfig C, bool kFixed>
struct Folded {};
template <AttendConfig C>
struct Folded<C, true> {
  alignas(16) float o[C.heads * C.pass_rows()][C.head_dim_vo];
  block::FoldState state[2][C.heads * C.kRows];  // read here and written there, in turn: nobody waits for another
};

/// What the items at hand are worked on with: another kernel's may have it in turn (device/mixed).
template <AttendConfig C>
struct ItemMemory {
  static constexpr int kHeadK = KRows<C>::bytes(C.kPieceKeys), kHeadV = VRows<C>::bytes(C.kPieceKeys), kHeadQ = QRows<C>::bytes(C.pass_rows());
  static constexpr int kExchangeRows = 4, kExchangeStride = C.head_dim_vo + 8;  // rows of a warp at a time; floats, free of bank conflicts

  static_assert(C.pieces * C.heads * kHeadK % 1024 == 0, "swizzles count from multiples of 1024 bytes");

  alignas(128) char k[C.pieces][C.heads * kHeadK];
  alignas(128) char v[C.pieces][C.heads * kHeadV];
  alignas(128) char q[C.heads * kHeadQ];
  float q_factor[C.fp8() ? C.heads * C.kRows : 1];  // what scores of a row have to be multiplied by (queries.cuh)
  alignas(16) float o[C.kWarps][kExchangeRows * kExchangeStride];  // states of warps that share rows, where they meet
  float max[C.kWarps][kExchangeRows], sum[C.kWarps][kExchangeRows];
  block::PartMask<C.pass_rows(), 1> mask[C.kWarps];  // a warp's own, of the piece that it works on
};

/// Begins at a multiple of 1024 bytes.
template <AttendConfig C, class V>
struct SharedMemory : ItemMemory<C> {
  static constexpr bool kTurned = block::has_query<V>();
  [[no_unique_address]] block::Apart<C.apart> apart;
  // What lasts as long as the CTA.
  [[no_unique_address]] Folded<C, C.fixed_split> folded;
  alignas(kTurned ? 128 : 4) char q_back[kTurned ? C.heads * ItemMemory<C>::kHeadQ : 4];  // turned.cuh
  uint32_t complete;
  uint64_t turns[block::has_key<V>() ? C.head_dim_qk / 2 : 1];  // fused RoPE
  Pass<C> pass[kPasses];
  Ring<1> query;
  Ring<kPasses> passes;
  Ring<kPasses> keys, units;  // what is known of each before all is, and a little later (Pass::unit); nobody waits for these to be left
  Ring<1> begun, turned;  // once: the kernels in front are done; turns are there
  Ring<C.pieces> piece;
};

/// How far a warp that computes has come.
template <AttendConfig C>
struct WarpPlaces {
  RingPlace<kPasses> pass;
  RingPlace<1> query;
  RingPlace<C.pieces> piece;  // this warp's next ones, of a step
  int32_t next;               // the step's number, counted from the beginning of the pass

  /// `turn`: the first of a head's pieces that is the warp's.
  __device__ __forceinline__ explicit WarpPlaces(int turn) : piece{turn * C.step_pieces(), 0}, next(turn) {}
};
/// Where it begins: each takes pieces of its head in turn.
template <AttendConfig C>
__device__ __forceinline__ WarpPlaces<C> first_places() {
  return WarpPlaces<C>((ptx::uniform(int(threadIdx.x) >> 5) - C.kLoaderWarps) / C.heads);
}

template <AttendConfig C, class V>
constexpr int shared_bytes() {
  return int(sizeof(SharedMemory<C, V>));
}

}  // namespace kvloom::stream
