// What the FlashInfer paper (arXiv 2501.01005) does where we do something else: the baseline that `kvloom plan --cost paper` shows.
#pragma once

#include "kvloom/contract/plan_format.h"

namespace kvloom::plan {

/// The paper's query tile: by the mean number of packed rows (query tokens x GQA group) of a request, the smallest of 16, 64 and 128 that
/// is not below it; 128 beyond.
inline int32_t paper_tile_q(int64_t packed_rows, int64_t requests) {
  if (packed_rows > 64 * requests) return 128;
  return packed_rows > 16 * requests ? 64 : 16;
}

/// The paper's cost of an item, 2 x rows + keys, as a class with its tile.
inline KernelClass paper_class(int32_t tile_q, int32_t tile_kv) {
  KernelClass k;
  k.tile_rows = tile_q;
  k.tile_kv = tile_kv;
  k.cost_per_token = 1;
  k.cost_per_tile_row = 2;
  return k;
}

}  // namespace kvloom::plan
