// The packed rows of an item, resolved once into shared memory: which token and head each is, and which list tokens it keeps.
#pragma once

#include "kvloom/attn/mask.h"
#include "kvloom/contract/attend_args.h"

namespace kvloom::block {

struct PackedRow {
  int32_t token;  // row of Q, O and LSE; -1: no row here
  int32_t request;
  int32_t q_index;
  int32_t q_pos;
  int32_t prefix;
  int32_t q_head;
};

/// What a row keeps by position, in list tokens, within the item's keys: [begin, end) and everything before `prefix_end`.
struct KeptTokens {
  int32_t begin;
  int32_t end;
  int32_t prefix_end;

  __device__ __forceinline__ bool keeps(int32_t j) const { return (j >= begin && j < end) || j < prefix_end; }
};

struct Rows {
  PackedRow* row;     // shared memory, [tile rows]
  KeptTokens* kept;   // shared memory, [tile rows]
  int32_t* all_kept;  // shared memory, [2]: list tokens [0] <= j < [1] are kept by every row of the item: such a tile needs no mask
};

__device__ __forceinline__ int32_t list_token(int64_t pos, const RowGroup& g, const WorkItem& item) {
  return int32_t(clamp_to<int64_t>(pos - g.kv_pos0, item.kv_begin, item.kv_end));
}

/// KeptTokens of a row, for lists whose positions are linear (others keep by position, key by key: everything in the item's range here).
__device__ __forceinline__ KeptTokens kept_tokens(const KeyRange& range, const RowEntry& e, const RowGroup& g, const WorkItem& item) {
  if (g.kv_position != KvPosition::linear) return {item.kv_begin, item.kv_end, item.kv_begin};
  const PositionRange k = kept_positions(range, e.q_pos);
  return {list_token(k.begin, g, item), list_token(k.end, g, item), list_token(e.prefix, g, item)};
}

/// Resolves rows [0, kTileRows) of the item; ends with a barrier.
template <int kTileRows, int kThreads>
__device__ __forceinline__ void block_resolve_rows(const AttendArgs& args, const PlanView& plan, const WorkItem& item, const RowGroup& group,
                                                   int kv_head, const Rows& rows) {
  if (threadIdx.x == 0) rows.all_kept[0] = item.kv_begin, rows.all_kept[1] = item.kv_end;
  __syncthreads();
  for (int i = int(threadIdx.x); i < kTileRows; i += kThreads) {
    PackedRow row{-1, 0, 0, 0, 0, 0};
    KeptTokens kept{item.kv_begin, item.kv_begin, item.kv_begin};
    if (i < item.row_count) {
      const uint32_t packed = uint32_t(item.row_begin + i);
      const uint32_t token = args.group_size.divide(packed);
      const uint32_t head = packed - token * args.group_size.divisor;
      const RowEntry e = row_of(plan, group, int32_t(token));
      row = {e.token, e.request, e.q_index, e.q_pos, e.prefix, int32_t(uint32_t(kv_head) * args.group_size.divisor + head)};
      kept = kept_tokens(args.params.variant.range, e, group, item);
      const bool joined = kept.prefix_end >= kept.begin;  // a prefix that reaches the window closes the gap
      atomicMax(&rows.all_kept[0], joined ? item.kv_begin : kept.begin);
      atomicMin(&rows.all_kept[1], joined ? max_of(kept.end, kept.prefix_end) : kept.end);
    }
    rows.row[i] = row;
    rows.kept[i] = kept;
  }
  __syncthreads();
}

}  // namespace kvloom::block
