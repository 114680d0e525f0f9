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

__device__ __forceinline__ void widen_hull(KeptHull& hull, const KeptTokens& kept, int32_t span_begin) {
  const bool joined = kept.prefix_end >= kept.begin;  // a prefix that reaches the window closes the gap
  atomicMax(&hull.all_begin, joined ? span_begin : kept.begin);
  atomicMin(&hull.all_end, joined ? max_of(kept.end, kept.prefix_end) : kept.end);
  if (kept.begin < kept.end) {
    atomicMin(&hull.any_begin, kept.begin);
    atomicMax(&hull.any_end, kept.end);
  }
  atomicMax(&hull.any_prefix, kept.prefix_end);
}

/// Resolves rows [0, kTileRows) of the item against `keys`; ends with a barrier.
template <class V, int kTileRows, int kThreads>
__device__ __forceinline__ void block_resolve_rows(const AttendArgs& args, const PlanView& plan, const WorkItem& item, const RowGroup& group,
                                                   int kv_head, const KeySpan& keys, const Rows& rows) {
  if (threadIdx.x == 0) *rows.hull = {keys.begin, keys.end, keys.end, keys.begin, keys.begin};
  __syncthreads();
  for (int i = int(threadIdx.x); i < kTileRows; i += kThreads) {
    const uint32_t packed = uint32_t(item.row_begin + min_of(i, int(item.row_count) - 1));
    const uint32_t token = args.group_size.divide(packed);
    const uint32_t head = packed - token * args.group_size.divisor;
    const RowEntry e = row_of(plan, group, int32_t(token));
    const bool there = i < item.row_count;
    const KeptTokens kept = there ? kept_tokens(args.params.variant.range, e, group, keys) : KeptTokens{keys.begin, keys.begin, keys.begin, keys.begin};
    if (there) widen_hull(*rows.hull, kept, keys.begin);
    PackedRow& row = rows.row[i];
    row = {e.q_pos, 0.0f, there ? e.token : -1, e.request, e.q_index, e.prefix, int32_t(uint32_t(kv_head) * args.group_size.divisor + head)};
    if constexpr (has_slope<V>()) {
      row.slope = V::slope(Coord{row.request, row.q_index, row.q_pos, 0, 0, row.q_head, kv_head}, args.params.variant);
    }
    rows.kept[i] = kept;
  }
  __syncthreads();
}

}  // namespace kvloom::block
