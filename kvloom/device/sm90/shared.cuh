// Shared memory of a CTA of the sm90 family, and the barriers in it.
#pragma once

#include "kvloom/contract/attend_boxes.h"
#include "kvloom/device/block/masks.cuh"
#include "kvloom/device/block/ring.cuh"
#include "kvloom/device/block/scaling.cuh"
#include "kvloom/device/block/tile_walk.cuh"
#include "kvloom/device/ptx/tma.cuh"
#include "kvloom/device/sm90/config.h"
#include "kvloom/device/sm90/tiles.cuh"

namespace kvloom::sm90 {

template <AttendConfig C>
using KTile = KvTile<C.head_dim_qk>;
template <AttendConfig C>
using VTile = KvTile<C.head_dim_vo>;
template <AttendConfig C>
using QTile = QueryTile<C.head_dim_qk, C.tile_rows>;
/// O of 16 bits on its way out: in memory of its own, or where Q was.
template <AttendConfig C>
using StagedO = QueryTile<C.stages_o ? C.head_dim_vo : C.head_dim_qk, C.tile_rows>;

/// The keys of a warpgroup's rows.
struct Reach {
  int32_t begin, end;              // its rows keep nothing outside
  int32_t plain_begin, plain_end;  // of tiles within, every row keeps every key; they follow each other without a gap
};

/// One pass of an item, for one KV head, as all warps of the CTA know it: made by the warp that goes through the items (items.cuh).
template <AttendConfig C>
struct Pass {
  WorkItem item;  // all of it; this CTA has rows [row_begin, row_begin + row_count) of it
  RowGroup group;
  block::TileWalk walk;  // of all rows of the item: the CTAs of a cluster take the same tiles
  int32_t seen_end;  // keys from the first that a row keeps to here are kept by some row of the group, if not of the item
  int32_t kv_head;
  int32_t row_begin, row_count;
  bool masked;  // masks are to be made; else ranges say it all
  bool last;    // of the item
  bool end;     // there are no more items
  bool more;    // of an end: another kernel's come next (device/mixed)
  Reach reach[C.teams()];
  block::Scaling scaling;
  block::KeptHull hull;
  block::KeptHull warp_hull[4 * C.teams()];  // of the 16 rows of each warp that computes
  block::PackedRow row[C.tile_rows];
  block::KeptTokens kept[C.tile_rows];
  int64_t o_row[C.tile_rows];  // where rows lie in the output, elements

  __device__ __forceinline__ block::Rows rows() { return {row, kept, &hull}; }
};

using block::Ring;
using block::RingPlace;

inline constexpr int kPasses = 3;      // known at a time: the one that is worked on and the next ones
inline constexpr int kLoaderWarps = 2;  // that fetch tiles by boxes; each a part of every tile

/// Where the rows of a tile's keys begin, in units (contract/attend_boxes.h).
template <AttendConfig C>
struct RowPlaces {
  static constexpr uint32_t kNone = ~0u;  // zeros instead
  static constexpr int kKeys = C.gathers ? C.tile_kv : 4;
  alignas(16) uint32_t k[kKeys];
  alignas(16) uint32_t v[kKeys];
};

/// What the items at hand are worked on with: another kernel's may have it in turn (device/mixed).
template <AttendConfig C>
struct ItemMemory {
  static constexpr int kStageK = KTile<C>::bytes(C.tile_kv), kStageV = VTile<C>::bytes(C.tile_kv);
  static constexpr int kStagedO = C.o_dtype == DType::f32 ? 0 : StagedO<C>::bytes();
  static_assert(C.stages_o || C.head_dim_vo <= C.head_dim_qk);
  static_assert(QTile<C>::bytes() % 1024 == 0 && kStageK % 1024 == 0 && kStageV % 1024 == 0, "swizzles count from multiples of 1024 bytes");

  alignas(128) char q[QTile<C>::bytes()];
  alignas(128) char k[C.stages][kStageK];
  alignas(128) char v[C.value_stages][kStageV];
  alignas(128) char o[C.stages_o && kStagedO > 0 ? kStagedO : 16];
  block::PartMask<16, C.tile_kv / 32> mask[4 * C.teams()];  // a warp's own, of the tile that it works on
  RowPlaces<C> places[2];  // of two tiles, where rows are fetched one by one
};

/// Begins at a multiple of 1024 bytes.
template <AttendConfig C, class V>
struct SharedMemory : ItemMemory<C> {
  [[no_unique_address]] block::Apart<C.apart> apart;
  // What lasts as long as the CTA.
  Pass<C> pass[kPasses];
  uint32_t live[3][C.tile_kv / 32];  // masked: keys of a tile that some row of the CTA keeps; in turn
  uint32_t complete;
  float never;  // ptx::made_before
  Ring<1> query;
  Ring<kPasses> passes;
  Ring<C.stages> keys;
  Ring<C.value_stages> values;
};

/// How far a warpgroup that computes has come.
template <AttendConfig C>
struct TeamPlaces {
  RingPlace<kPasses> pass;
  RingPlace<1> query;
  RingPlace<C.stages> keys;
  RingPlace<C.value_stages> values;
  int masks_made = 0, masks_used = 0;  // counted over all tiles that had masks: places in CtaMemory::live
};

template <AttendConfig C, class V>
constexpr int shared_bytes() { return int(sizeof(SharedMemory<C, V>)); }

}  // namespace kvloom::sm90
