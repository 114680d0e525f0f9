// Rows of Q, K and V from wherever they lie into swizzled shared memory, 16 bytes a copy. Where a key's row lies is worked out once a key,
// one tile ahead, by one thread; the copying threads read it from shared memory, so page_size 1 costs what page_size 64 costs.
#pragma once

#include "kvloom/device/block/rows.cuh"
#include "kvloom/device/ptx/cp_async.cuh"
#include "kvloom/device/sm80/config.h"
#include "kvloom/device/tile/swizzle.cuh"

namespace kvloom::sm80 {

/// Element offsets of one key's rows in K and V, 64-bit; k < 0: no such key, zeros are stored.
struct KeyRow {
  int64_t k;
  int64_t v;
};

/// Row of list token `j` for `kv_head`. Page ids outside [kv_begin, kv_end) are never read.
template <AttendConfig C>
__device__ __forceinline__ KeyRow key_row(const AttendArgs& args, const RowGroup& group, const WorkItem& item, int kv_head, int32_t j) {
  if (j < item.kv_begin || j >= item.kv_end) return {-1, -1};
  const KvView& kv = args.params.kv;
  int64_t page, slot = 0;
  if constexpr (C.paged) {
    const uint32_t entry = args.page_size.divide(uint32_t(j));
    slot = j - int32_t(entry * args.page_size.divisor);
    page = args.params.pages[group.list_begin + entry];
  } else {
    page = group.list_begin + j;
  }
  return {page * kv.k_page + slot * kv.k_token + kv_head * kv.k_head, page * kv.v_page + slot * kv.v_token + kv_head * kv.v_head};
}

/// Copies tile_kv rows of kDim elements; `kIsV` picks the view. The caller commits.
template <AttendConfig C, int kDim, bool kIsV>
__device__ __forceinline__ void block_load_keys(const AttendArgs& args, const KeyRow* where, char* tile) {
  using Rows = tile::SwizzledRows<kDim>;
  const char* base = static_cast<const char*>(kIsV ? args.params.kv.v : args.params.kv.k);
  const uint32_t shared = ptx::shared_address(tile);
#pragma unroll
  for (int i = 0; i < ceil_div(C.tile_kv * Rows::kChunks, C.threads()); ++i) {
    const int at = i * C.threads() + int(threadIdx.x);
    const int row = at / Rows::kChunks, chunk = at % Rows::kChunks;
    if (C.tile_kv * Rows::kChunks % C.threads() != 0 && row >= C.tile_kv) break;
    const int64_t offset = kIsV ? where[row].v : where[row].k;
    const bool valid = where[row].k >= 0;
    ptx::cp_async_16(shared + Rows::offset(row, chunk), base + (valid ? offset * 2 + chunk * 16 : 0), valid);
  }
}

/// Copies the item's query rows; rows that are not there become zeros.
template <AttendConfig C>
__device__ __forceinline__ void block_load_queries(const AttendArgs& args, const block::PackedRow* rows, char* tile) {
  using Rows = tile::SwizzledRows<C.head_dim_qk>;
  const char* base = static_cast<const char*>(args.params.q);
  const uint32_t shared = ptx::shared_address(tile);
#pragma unroll 4
  for (int at = int(threadIdx.x); at < C.tile_rows * Rows::kChunks; at += C.threads()) {
    const int row = at / Rows::kChunks, chunk = at % Rows::kChunks;
    const bool valid = rows[row].token >= 0;
    const int64_t offset = rows[row].token * args.params.q_token + rows[row].q_head * args.params.q_head;
    ptx::cp_async_16(shared + Rows::offset(row, chunk), base + (valid ? offset * 2 + chunk * 16 : 0), valid);
  }
}

}  // namespace kvloom::sm80
