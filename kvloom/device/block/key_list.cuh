// Where a group's list of keys says that they lie, and which positions they have.
#pragma once

#include "kvloom/contract/attend_boxes.h"

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

/// A key that some row keeps, by its page id, which may still be on its way: whatever looks at the id waits for it, so that is for who fetches
/// the key's rows, later (row_place).
struct AskedKey {
  uint32_t page;    // the id's low half: ids that fit into a cache have no other
  int32_t in_page;  // -1: no row keeps the key
};
template <bool kPaged>
__device__ __forceinline__ AskedKey ask_key(const AttendArgs& args, const RowGroup& group, int32_t j) {
  const KeySlot<kPaged> slot(args, group, j);
  return {uint32_t(args.params.pages[slot.entry]), slot.in_page};
}

/// Where a key's row of K or V begins, in units (contract/attend_boxes.h).
__device__ __forceinline__ uint32_t row_place(const AskedKey& key, const AttendBoxes::Of& of, int head) {
  return key.page * uint32_t(of.page_step) + uint32_t(key.in_page) * uint32_t(of.token_step) + uint32_t(head) * uint32_t(of.head_step);
}
/// False if there is nothing to read: no row keeps the key, or its page is none of the cache's, which is only allowed of keys that masks take
/// from all rows.
__device__ __forceinline__ bool is_there(const AttendArgs& args, const AskedKey& key) {
  const int64_t pages = args.params.kv.num_pages;
  return key.in_page >= 0 && (pages <= 0 || int64_t(key.page) < pages);
}

/// Coordinate of a page and head in a map. A page that is none of the cache's may come out anywhere: boxes outside are zeros.
__device__ __forceinline__ int32_t box_place(int32_t page, const AttendBoxes::Of& of, int head) {
  return int32_t(uint32_t(page) * uint32_t(of.page_step) + uint32_t(head) * uint32_t(of.head_step));
}

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
