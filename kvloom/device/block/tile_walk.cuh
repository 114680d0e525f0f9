// In which order the tiles of a pass over keys are taken, and which of them no row keeps anything of.
#pragma once

#include "kvloom/device/block/rows.cuh"

namespace kvloom::block {

/// The keys of one pass over K and V, and how their tiles follow each other: at multiples of tile_kv from list token 0, the last tile first,
/// without those between the prefix and the window, which no row keeps. The newest keys come first because where logits fall with the distance
/// (ALiBi, above all) the first tile then has the rows' maxima, and nothing that was added up has to be scaled again.
struct TileWalk {
  KeySpan keys;
  int32_t start;        // the first tile, which has the last keys
  int32_t window, gap;  // the tile at `window` is followed by the one that ends at `gap`: no row keeps what is between; gap -1: there is no gap
  int32_t last;         // no tile begins before this
  int32_t all_begin, all_end;  // tiles within these keys are kept whole by every row
  int32_t any_begin, any_end, prefix_end;  // keys outside these, and not before prefix_end, are kept by no row

  template <int kTileKv>
  __device__ __forceinline__ static TileWalk of(const KeySpan& keys, const KeptHull& hull) {
    const int32_t prefix_end = hull.any_prefix;
    const bool any = hull.any_begin < hull.any_end, prefixed = prefix_end > keys.begin;
    const int32_t window = (any ? hull.any_begin : prefix_end) / kTileKv * kTileKv, begin = keys.begin / kTileKv * kTileKv;
    const int32_t gap = round_up(prefix_end, kTileKv), last = prefixed ? begin : max_of(begin, window);
    const int32_t end = any ? max_of(hull.any_end, prefix_end) : prefixed ? prefix_end : 0;
    return {keys, end > last ? (end - 1) / kTileKv * kTileKv : last - kTileKv, window, prefixed && gap < window ? gap : -1, last,
            hull.all_begin, hull.all_end, hull.any_begin, hull.any_end, prefix_end};
  }
  /// False: `token` is past the last tile.
  __device__ __forceinline__ bool has(int32_t token) const { return token >= last; }
  /// False: no row keeps list token j, which is one of `keys`.
  __device__ __forceinline__ bool touches(int32_t j) const { return ((j >= any_begin) & (j < any_end)) | (j < prefix_end); }
  template <int kTileKv>
  __device__ __forceinline__ int32_t next(int32_t token) const {
    return (token == window && gap >= 0 ? gap : token) - kTileKv;
  }
  /// Tile i in this order.
  template <int kTileKv>
  __device__ __forceinline__ int32_t tile(int32_t i) const {
    const int32_t token = start - i * kTileKv;
    return gap >= 0 && token < window ? token + (gap - window) : token;
  }
  /// How many there are.
  template <int kTileKv>
  __device__ __forceinline__ int32_t count() const {
    return (start - last - (gap >= 0 ? window - gap : 0)) / kTileKv + 1;
  }
};

}  // namespace kvloom::block
