// Where a group's list of keys says that they lie, and which positions they have.
#pragma once

#include "kvloom/contract/attend_args.h"

namespace kvloom::block {

/// Entry of the page table (ragged: token) and place within the page of list token j.
template <bool kPaged>
struct KeySlot {
  int64_t entry;
  int32_t in_page;
  __device__ __forceinline__ KeySlot(const AttendArgs& args, const RowGroup& group, int32_t j) : entry(group.list_begin + j), in_page(0) {
    if constexpr (kPaged) {
      const uint32_t page = args.page_size.divide(uint32_t(j));
      in_page = j - int32_t(page * args.page_size.divisor);
      entry = group.list_begin + page;
    }
  }
};

/// Page of list token `j`, which some row keeps; page ids of other keys are never read.
template <bool kPaged>
__device__ __forceinline__ int64_t page_of(const AttendArgs& args, const RowGroup& group, int32_t j) {
  const KeySlot<kPaged> slot(args, group, j);
  return kPaged ? args.params.pages[slot.entry] : slot.entry;
}

/// Position of list token j, which must be the item's.
template <bool kPaged>
__device__ __forceinline__ int32_t position_of(const AttendArgs& args, const RowGroup& group, int32_t j) {
  if (group.kv_position == KvPosition::linear) return group.kv_pos0 + j;
  const KeySlot<kPaged> slot(args, group, j);
  if (group.kv_position == KvPosition::page_table) return args.params.page_pos[slot.entry] + slot.in_page;
  const int64_t page = kPaged ? args.params.pages[slot.entry] : slot.entry;
  return int32_t(page * args.page_size.divisor + slot.in_page);
}

}  // namespace kvloom::block
