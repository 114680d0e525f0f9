// Shared memory of a CTA of the sm80 family.
#pragma once

#include "kvloom/device/block/masks.cuh"
#include "kvloom/device/block/rows.cuh"
#include "kvloom/device/block/variant.cuh"
#include "kvloom/device/sm80/config.h"
#include "kvloom/device/tile/swizzle.cuh"

namespace kvloom::sm80 {

/// Where one key's rows begin; nullptr: no such key, zeros are stored.
struct alignas(16) KeyPlace {
  const char* k;
  const char* v;
};

/// std::conditional, which NVRTC lacks.
template <bool kFirst, class A, class B>
struct Select {
  using Type = A;
};
template <class A, class B>
struct Select<false, A, B> {
  using Type = B;
};

template <AttendConfig C>
using QRows = tile::SwizzledRows<C.head_dim_qk * 2>;
template <AttendConfig C, int kBytes>
using KvRows = typename Select<C.boxed, tile::BoxRows<kBytes>, tile::SwizzledRows<kBytes>>::Type;
template <AttendConfig C>
using KRows = KvRows<C, C.head_dim_qk * size_of(C.kv_dtype)>;
template <AttendConfig C>
using VRows = KvRows<C, C.head_dim_vo * size_of(C.kv_dtype)>;

template <AttendConfig C>
using PRows = tile::SwizzledRows<C.tile_kv * 2>;

struct RingPlace {  // a stage, and how often the ring has gone round, as parity
  int stage;
  uint32_t parity;
};

/// What a CTA knows of its list of items, in shared memory, since registers are what the mainloop is short of: an item's words are asked for two items
/// before it begins, and its group's one before, so that none begins with two waits for memory behind each other.
struct ItemWords {
  alignas(16) WorkItem item;  // of the moment
  alignas(16) RowGroup group;
  alignas(16) WorkItem next, after_next;
  alignas(16) RowGroup next_group;
};

/// Arrays that a configuration or variant does without have one element. The items are in front, for all configurations alike.
template <AttendConfig C, class V>
struct SharedMemory : ItemWords {
  static_assert(C.stages >= 2 && C.stages <= 4, "two to four tiles in shared memory");
  static constexpr bool kTurned = block::has_key<V>() && C.fp8();  // rotated keys have 16 bits and a tile of their own
  static constexpr int kPlaces = round_up(C.copy_rows(), 32);
  /// Tiles that something is known of at a time: with keys of its own a warp knows the masks one tile before it copies, else when it does.
  static constexpr int kSlots = C.own_keys() ? C.tiles_ahead() + 2 : C.stages;
  static constexpr int kTileK = KRows<C>::bytes(C.tile_kv), kTileV = VRows<C>::bytes(C.tile_kv);
  static constexpr int kTiles = QRows<C>::bytes(C.tile_rows) + C.stages * (kTileK + kTileV);

  alignas(128) char q[QRows<C>::bytes(C.tile_rows)];
  alignas(128) char k[C.stages][kTileK];
  alignas(128) char v[C.stages][kTileV];
  alignas(128) char turned[max_of(kTurned ? QRows<C>::bytes(C.tile_kv) : 16, C.merge_bytes() - kTiles)];  // long V beside short K: the merge's end, too
  KeyPlace place[C.warps()][kPlaces];  // a warp's own: of the rows that it copies
  float fold_o[C.fixed_split ? C.tile_rows * C.head_dim_vo : 4];  // fixed_split: the chunks folded so far
  float exchange[C.wide() ? C.tile_rows * C.warps_kv : 4];        // wide: maxima of the warps, at the end their sums
  alignas(128) char weights[C.wide() ? PRows<C>::bytes(C.tile_rows) : 16];  // wide: P of the tile
  uint64_t turns[block::has_key<V>() || block::has_query<V>() ? C.head_dim_qk / 2 : 1];
  block::PartMask<C.tile_rows, C.part_words()> mask[kSlots][C.parts()];  // where masks take more than ranges
  block::PackedRow row[C.tile_rows];
  block::KeptTokens kept[C.tile_rows];
  float fold_lse[C.fixed_split ? C.tile_rows * C.warps_kv : 1];  // a copy a warp
  block::KeptHull hull;
  uint32_t complete;
  RingPlace ring;  // where the tiles of the next pass begin
  uint64_t landed[C.stages], left[C.stages];  // barriers (ring.cuh)

  __device__ __forceinline__ block::Rows rows() { return {row, kept, &hull}; }
};

template <AttendConfig C, class V>
constexpr int shared_bytes() { return int(sizeof(SharedMemory<C, V>)); }

}  // namespace kvloom::sm80
