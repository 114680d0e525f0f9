// Rows of Q, K and V from wherever they lie into swizzled shared memory, 16 bytes a copy. Where a key's rows lie is worked out once a key,
// tiles ahead, by one thread; the copying threads read it from shared memory, so page_size 1 costs what page_size 64 costs.
#pragma once

#include "kvloom/device/ptx/cp_async.cuh"
#include "kvloom/device/sm80/shared.cuh"

namespace kvloom::sm80 {

/// The keys of one pass over K and V, and how their tiles follow each other: multiples of tile_kv from list token 0, without those between
/// the prefix and the window, which no row keeps.
struct TileWalk {
  block::KeySpan keys;
  int32_t prefix_end;  // tiles that begin before this are visited
  int32_t window;      // first list token of the first tile of the window
  int32_t end;         // no tile begins at or after this

  template <int kTileKv>
  __device__ __forceinline__ static TileWalk of(const block::KeySpan& keys, const block::KeptHull& hull) {
    const int32_t prefix_end = hull.any_prefix;
    const bool any = hull.any_begin < hull.any_end;
    const int32_t window = (any ? hull.any_begin : prefix_end) / kTileKv * kTileKv;
    return {keys, prefix_end, window, any ? max_of(hull.any_end, prefix_end) : prefix_end > keys.begin ? prefix_end : 0};
  }
  template <int kTileKv>
  __device__ __forceinline__ int32_t first() const {
    const int32_t t = keys.begin / kTileKv * kTileKv;
    return prefix_end > keys.begin ? t : max_of(t, window);
  }
  template <int kTileKv>
  __device__ __forceinline__ int32_t next(int32_t token) const {
    token += kTileKv;
    return token < prefix_end ? token : max_of(token, window);
  }
};

/// Entry of the page table (ragged: token) and place within the page of list token j.
template <AttendConfig C>
struct KeySlot {
  int64_t entry;
  int32_t in_page;
  __device__ __forceinline__ KeySlot(const AttendArgs& args, const RowGroup& group, int32_t j) : entry(group.list_begin + j), in_page(0) {
    if constexpr (C.paged) {
      const uint32_t page = args.page_size.divide(uint32_t(j));
      in_page = j - int32_t(page * args.page_size.divisor);
      entry = group.list_begin + page;
    }
  }
};

/// Page of list token `j`, which some row keeps; page ids of other keys are never read.
template <AttendConfig C>
__device__ __forceinline__ int64_t page_of(const AttendArgs& args, const RowGroup& group, int32_t j) {
  const KeySlot<C> slot(args, group, j);
  return C.paged ? args.params.pages[slot.entry] : slot.entry;
}

/// Position of list token j, which must be the item's.
template <AttendConfig C>
__device__ __forceinline__ int32_t position_of(const AttendArgs& args, const RowGroup& group, int32_t j) {
  if (group.kv_position == KvPosition::linear) return group.kv_pos0 + j;
  const KeySlot<C> slot(args, group, j);
  if (group.kv_position == KvPosition::page_table) return args.params.page_pos[slot.entry] + slot.in_page;
  const int64_t page = C.paged ? args.params.pages[slot.entry] : slot.entry;
  return int32_t(page * args.page_size.divisor + slot.in_page);
}

template <AttendConfig C>
__device__ __forceinline__ KeyPlace place_of(const AttendArgs& args, const RowGroup& group, int kv_head, int32_t j, int64_t page) {
  const KvView& kv = args.params.kv;
  const int64_t in_page = KeySlot<C>(args, group, j).in_page;
  constexpr int kSize = size_of(C.kv_dtype);
  return {static_cast<const char*>(kv.k) + (page * kv.k_page + in_page * kv.k_token + kv_head * kv.k_head) * kSize,
          static_cast<const char*>(kv.v) + (page * kv.v_page + in_page * kv.v_token + kv_head * kv.v_head) * kSize};
}

/// Copies `kRows` rows of kBytes / 16 chunks each; source(row) is a row's first byte or nullptr.
template <class Layout, int kRows, int kThreads, class Source>
__device__ __forceinline__ void block_copy_rows(uint32_t tile, Source source) {
#pragma unroll
  for (int i = 0; i < ceil_div(kRows * Layout::kChunks, kThreads); ++i) {
    const int at = i * kThreads + int(threadIdx.x);
    const int row = at / Layout::kChunks, chunk = at % Layout::kChunks;
    if (kRows * Layout::kChunks % kThreads != 0 && row >= kRows) break;
    const char* from = source(row);
    ptx::cp_async_16(tile + Layout::offset(row, chunk), from + chunk * 16, from != nullptr);
  }
}

/// K and V of a tile, one group of copies; the caller commits.
template <AttendConfig C>
__device__ __forceinline__ void block_load_tile(const KeyPlace* place, char* k, char* v) {
  const uint32_t k_tile = ptx::shared_address(k), v_tile = ptx::shared_address(v);
  if constexpr (KRows<C>::kChunks == VRows<C>::kChunks) {  // one look at a place serves both
    using Layout = KRows<C>;
    constexpr int kAll = C.tile_kv * Layout::kChunks;
#pragma unroll
    for (int i = 0; i < ceil_div(kAll, C.threads()); ++i) {
      const int at = i * C.threads() + int(threadIdx.x);
      const int row = at / Layout::kChunks, chunk = at % Layout::kChunks;
      if (kAll % C.threads() != 0 && row >= C.tile_kv) break;
      const KeyPlace from = place[row];
      const uint32_t offset = Layout::offset(row, chunk);
      ptx::cp_async_16(k_tile + offset, from.k + chunk * 16, from.k != nullptr);
      ptx::cp_async_16(v_tile + offset, from.v + chunk * 16, from.k != nullptr);
    }
  } else {
    block_copy_rows<KRows<C>, C.tile_kv, C.threads()>(k_tile, [&](int row) { return place[row].k; });
    block_copy_rows<VRows<C>, C.tile_kv, C.threads()>(v_tile, [&](int row) { return place[row].k ? place[row].v : nullptr; });
  }
}

/// Copies the item's query rows; rows that are not there become zeros.
template <AttendConfig C>
__device__ __forceinline__ void block_load_queries(const AttendArgs& args, const block::PackedRow* rows, char* tile) {
  using Layout = QRows<C>;
  const char* base = static_cast<const char*>(args.params.q);
  const uint32_t shared = ptx::shared_address(tile);
#pragma unroll 4
  for (int at = int(threadIdx.x); at < C.tile_rows * Layout::kChunks; at += C.threads()) {
    const int row = at / Layout::kChunks, chunk = at % Layout::kChunks;
    const bool valid = rows[row].token >= 0;
    const int64_t offset = rows[row].token * args.params.q_token + rows[row].q_head * args.params.q_head;
    ptx::cp_async_16(shared + Layout::offset(row, chunk), base + (valid ? offset * 2 + chunk * 16 : 0), valid);
  }
}

}  // namespace kvloom::sm80
