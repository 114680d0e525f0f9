// The packed rows of an item, resolved once into shared memory: which token and head each is, and which list tokens it keeps.
#pragma once

#include "kvloom/attn/mask.h"
#include "kvloom/device/block/variant.cuh"

namespace kvloom::block {

struct alignas(16) PackedRow {
  int32_t q_pos;
  float slope;    // of variants with that hook
  int32_t token;  // row of Q, O and LSE; -1: no row here, and the rest is that of the last row
  int32_t request;
  int32_t q_index;
  int32_t prefix;
  int32_t q_head;
};

/// What a row keeps by position, in list tokens, within the item's keys: [begin, end) and, of its prefix, [first, prefix_end).
struct alignas(16) KeptTokens {
  int32_t begin;
  int32_t end;
  int32_t first;
  int32_t prefix_end;

  /// The end of what is kept, if that is one piece.
  __device__ __forceinline__ int32_t joined_end() const { return prefix_end >= begin ? max_of(end, prefix_end) : end; }
  /// List tokens j .. j + 31, token j + i in bit i.
  __device__ __forceinline__ uint32_t word(int32_t j) const {
    return (low_bits(end - j) & ~low_bits(begin - j)) | (low_bits(prefix_end - j) & ~low_bits(first - j));
  }

 private:
  __device__ __forceinline__ static uint32_t low_bits(int32_t n) { return n >= 32 ? ~0u : n <= 0 ? 0u : (1u << n) - 1u; }
};

/// What the rows of an item keep together, in list tokens.
struct KeptHull {
  int32_t all_begin, all_end;  // every row keeps these: a tile within them needs no mask
  int32_t any_begin, any_end;  // keys outside these ...
  int32_t any_prefix;          // ... and not before this are kept by no row
};

struct Rows {
  PackedRow* row;    // shared memory, [tile rows]
  KeptTokens* kept;  // shared memory, [tile rows]
  KeptHull* hull;    // shared memory
};

/// Keys [begin, end) of a group's list.
struct KeySpan {
  int32_t begin;
  int32_t end;
};

__device__ __forceinline__ int32_t list_token(int64_t pos, const RowGroup& g, const KeySpan& keys) {
  return int32_t(clamp_to<int64_t>(pos - g.kv_pos0, keys.begin, keys.end));
}

/// KeptTokens of a row, for lists whose positions are linear (others keep by position, key by key: everything in the span here).
__device__ __forceinline__ KeptTokens kept_tokens(const KeyRange& range, const RowEntry& e, const RowGroup& g, const KeySpan& keys) {
  if (g.kv_position != KvPosition::linear) return {keys.begin, keys.end, keys.begin, keys.begin};
  const PositionRange k = kept_positions(range, e.q_pos);
  return {list_token(k.begin, g, keys), list_token(k.end, g, keys), keys.begin, list_token(e.prefix, g, keys)};
}

/// What a row keeps, as a hull of its own.
__device__ __forceinline__ KeptHull hull_of(const KeptTokens& kept, const KeySpan& keys) {
  const bool joined = kept.prefix_end >= kept.begin, any = kept.begin < kept.end;  // a prefix that reaches the window closes the gap
  return {joined ? keys.begin : kept.begin, kept.joined_end(), any ? kept.begin : keys.end,
          any ? kept.end : keys.begin, kept.prefix_end};
}
/// Of no row.
__device__ __forceinline__ KeptHull empty_hull(const KeySpan& keys) { return {keys.begin, keys.end, keys.end, keys.begin, keys.begin}; }

__device__ __forceinline__ void widen_shared(KeptHull& hull, const KeptHull& by) {
  atomicMax(&hull.all_begin, by.all_begin);
  atomicMin(&hull.all_end, by.all_end);
  atomicMin(&hull.any_begin, by.any_begin);
  atomicMax(&hull.any_end, by.any_end);
  atomicMax(&hull.any_prefix, by.any_prefix);
}
__device__ __forceinline__ void widen(KeptHull& hull, const KeptHull& by) {
  hull = {max_of(hull.all_begin, by.all_begin), min_of(hull.all_end, by.all_end), min_of(hull.any_begin, by.any_begin),
          max_of(hull.any_end, by.any_end), max_of(hull.any_prefix, by.any_prefix)};
}
/// Of the rows of the lanes of `mask`, which are those that come here together.
__device__ __forceinline__ KeptHull join_lanes(uint32_t mask, const KeptHull& mine) {
  return {__reduce_max_sync(mask, mine.all_begin), __reduce_min_sync(mask, mine.all_end), __reduce_min_sync(mask, mine.any_begin),
          __reduce_max_sync(mask, mine.any_end), __reduce_max_sync(mask, mine.any_prefix)};
}

/// Item `i` of the plan and its group into shared memory. By a whole warp; ends with __syncwarp.
__device__ __forceinline__ void warp_fetch_item(const PlanView& plan, int32_t i, WorkItem& item, RowGroup& group) {
  constexpr int kItemWords = sizeof(WorkItem) / 4, kGroupWords = sizeof(RowGroup) / 4;
  const int lane = int(threadIdx.x) & 31;
  const WorkItem& from = plan.items[i];
  if (lane < kItemWords) reinterpret_cast<uint32_t*>(&item)[lane] = reinterpret_cast<const uint32_t*>(&from)[lane];
  if (lane < kGroupWords) reinterpret_cast<uint32_t*>(&group)[lane] = reinterpret_cast<const uint32_t*>(&plan.groups[from.group])[lane];
  __syncwarp();
}

/// Packed row `packed` of the group and what it keeps; `there`: it is one of the item's, else nothing is kept and the token is -1.
template <class V>
__device__ __forceinline__ KeptTokens resolve_row(const AttendArgs& args, const PlanView& plan, const RowGroup& group, int kv_head, const KeySpan& keys,
                                                  uint32_t packed, bool there, PackedRow& row) {
  const uint32_t token = args.group_size.divide(packed);
  const uint32_t head = packed - token * args.group_size.divisor;
  const RowEntry e = row_of(plan, group, int32_t(token));
  row = {e.q_pos, 0.0f, there ? e.token : -1, e.request, e.q_index, e.prefix, int32_t(uint32_t(kv_head) * args.group_size.divisor + head)};
  if constexpr (has_slope<V>()) {
    row.slope = V::slope(Coord{row.request, row.q_index, row.q_pos, 0, 0, row.q_head, kv_head}, args.params.variant);
  }
  return there ? kept_tokens(args.params.variant.range, e, group, keys) : KeptTokens{keys.begin, keys.begin, keys.begin, keys.begin};
}

/// Resolves rows [0, kTileRows) of the item against `keys`; ends with a barrier.
template <class V, int kTileRows, int kThreads>
__device__ __forceinline__ void block_resolve_rows(const AttendArgs& args, const PlanView& plan, const WorkItem& item, const RowGroup& group,
                                                   int kv_head, const KeySpan& keys, const Rows& rows) {
  if (threadIdx.x == 0) *rows.hull = empty_hull(keys);
  __syncthreads();
  const int lane = int(threadIdx.x) & 31;
  for (int first = int(threadIdx.x) - lane; first < kTileRows; first += kThreads) {
    const int i = first + lane;
    const bool there = i < item.row_count;
    KeptHull hull = empty_hull(keys);
    if (i < kTileRows) {
      rows.kept[i] = resolve_row<V>(args, plan, group, kv_head, keys, uint32_t(item.row_begin + min_of(i, int(item.row_count) - 1)), there, rows.row[i]);
      if (there) hull = hull_of(rows.kept[i], keys);
    }
    hull = join_lanes(0xffffffffu, hull);  // 32 lanes at one word of shared memory would take turns
    if (lane == 0) widen_shared(*rows.hull, hull);
  }
  __syncthreads();
}

}  // namespace kvloom::block
