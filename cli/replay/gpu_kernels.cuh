// What a replay does on a GPU besides attention: Q, K and V made where they are needed, pages copied and poisoned, rows fetched for the
// check. Each kernel takes one struct; any grid and any block will do. Compiled at run time behind mix.h and pieces.h; the host reads the
// structs alone.
#pragma once

#include "cli/replay/pieces.h"
#include "kvloom/base/dtype.h"

namespace kvloom::replay {

inline constexpr int64_t kChunk = 16;  // bytes that a thread moves; rows are multiples of it

/// Page events of every pool, in the order given: page `from` copied over `page`, or (from == -1) poison.
struct PageEventsArgs {
  char* pools;
  int64_t pool_bytes, num_pools;
  int64_t k_page, v_page;  // bytes of a page
  int64_t pages;           // of a pool: K of all, then V of all
  const int32_t* events;   // from, page
  int64_t num_events;
};

/// Rows [tokens, heads] of Q, K or V: each a piece of the table (pieces.h).
struct FillRowsArgs {
  const char* table;
  int64_t piece_bytes;  // from piece to piece
  int64_t row_bytes;
  const uint64_t* tokens;
  int64_t num_tokens;
  int64_t heads;
  uint64_t salt;
  int32_t is_v;
  char* out;
};

/// Elements of `data` that are not finite, added to *count.
struct CountNonfiniteArgs {
  const char* data;
  int64_t elements;
  DType dtype;  // f32, f16, bf16
  unsigned long long* count;
};

/// Rows of one head out of pages, one behind another.
struct GatherRowsArgs {
  const char* from;  // of the head
  int64_t page_bytes, token_bytes, row_bytes;
  const int32_t* page_ids;
  int64_t page_size, num_rows;
  char* out;
};

/// Keeps the stream busy, so that what is put into it meanwhile runs without gaps.
struct HoldArgs {
  int64_t cycles;
};

#if defined(__CUDACC__) || defined(KVLOOM_EMULATED)

struct alignas(16) Chunk {
  uint64_t low, high;
};

__device__ inline int64_t first_index() { return int64_t(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline int64_t index_step() { return int64_t(gridDim.x) * blockDim.x; }
__device__ inline void copy_chunk(char* to, const char* from) { *reinterpret_cast<Chunk*>(to) = *reinterpret_cast<const Chunk*>(from); }

/// A thread does all events for its chunk of a page, so they come in order whatever the others do.
extern "C" __global__ void page_events(PageEventsArgs a) {
  const int64_t chunks = (a.k_page + a.v_page) / kChunk;
  for (int64_t i = first_index(); i < chunks * a.num_pools; i += index_step()) {
    const int64_t at = i % chunks * kChunk;
    const bool in_k = at < a.k_page;
    const int64_t page_bytes = in_k ? a.k_page : a.v_page;
    char* const base = a.pools + i / chunks * a.pool_bytes + (in_k ? at : a.k_page * a.pages + (at - a.k_page));
    for (int64_t e = 0; e < a.num_events; ++e) {
      const int64_t from = a.events[2 * e], page = a.events[2 * e + 1];
      char* const to = base + page * page_bytes;
      if (from >= 0) {
        copy_chunk(to, base + from * page_bytes);
      } else {
        *reinterpret_cast<Chunk*>(to) = Chunk{~uint64_t(0), ~uint64_t(0)};  // a NaN in every one of our types
      }
    }
  }
}

extern "C" __global__ void fill_rows(FillRowsArgs a) {
  const int64_t chunks = a.row_bytes / kChunk;
  for (int64_t i = first_index(); i < a.num_tokens * a.heads * chunks; i += index_step()) {
    const int64_t row = i / chunks, head = row % a.heads;
    const uint64_t piece = piece_of(token_hash(a.tokens[row / a.heads], a.salt, a.is_v != 0), head);
    copy_chunk(a.out + i * kChunk, a.table + int64_t(piece) * a.piece_bytes + i % chunks * kChunk);
  }
}

extern "C" __global__ void count_nonfinite(CountNonfiniteArgs a) {
  unsigned long long bad = 0;
  for (int64_t i = first_index(); i < a.elements; i += index_step()) {
    if (a.dtype == DType::f32) {
      bad += (reinterpret_cast<const uint32_t*>(a.data)[i] & 0x7f800000u) == 0x7f800000u;
    } else {
      const uint16_t exponent = a.dtype == DType::bf16 ? 0x7f80 : 0x7c00;
      bad += (reinterpret_cast<const uint16_t*>(a.data)[i] & exponent) == exponent;
    }
  }
  if (bad > 0) atomicAdd(a.count, bad);
}

extern "C" __global__ void hold(HoldArgs a) {
  const int64_t start = clock64();
  while (clock64() - start < a.cycles) {
  }
}

extern "C" __global__ void gather_rows(GatherRowsArgs a) {
  const int64_t chunks = a.row_bytes / kChunk;
  for (int64_t i = first_index(); i < a.num_rows * chunks; i += index_step()) {
    const int64_t row = i / chunks;
    const int64_t page = a.page_ids[row / a.page_size];
    copy_chunk(a.out + i * kChunk, a.from + page * a.page_bytes + row % a.page_size * a.token_bytes + i % chunks * kChunk);
  }
}

#endif

}  // namespace kvloom::replay
