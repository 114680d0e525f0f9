// Merging attention states that callers hold: the algebra of attn/state.h over strided tensors of fp32, fp16 or bf16.
#pragma once

#include "kvloom/cpu/element_rows.h"
#include "kvloom/support/thread_pool.h"

namespace kvloom::cpu {

/// States of [rows, heads]: element d of O at o + row * o_row + head * o_head + d, LSE (natural log) at lse + row * lse_row + head *
/// lse_head. Strides in elements.
struct StateRows {
  const void* o = nullptr;
  DType dtype = DType::f32;
  int64_t o_row = 0, o_head = 0;
  const float* lse = nullptr;
  int64_t lse_row = 0, lse_head = 0;
};

/// Where the merged states go: as StateRows.
struct MergedRows {
  void* o = nullptr;
  DType dtype = DType::f32;
  int64_t o_row = 0, o_head = 0;
  float* lse = nullptr;
  int64_t lse_row = 0, lse_head = 0;
};

/// States that one output row may be the merge of: `count` of them, `o_step` and `lse_step` elements apart.
struct StateList {
  const void* o = nullptr;
  DType dtype = DType::f32;
  int64_t o_step = 0;
  const float* lse = nullptr;
  int64_t lse_step = 0;
  int64_t count = 0;
};

/// o [dim], *lse = merge of all states of the lists, in their order; of none: (0, -inf). States with an infinite LSE are empty, whatever
/// their O holds; one live state comes out as it is. `o` may be the O of one of the states (in place), `lse` its LSE.
void merge_lists(const StateList* lists, int32_t num_lists, int64_t dim, const ElementRows& rows, void* o, DType dtype, float* lse);

/// out = a merged with b.
void merge_states(const StateRows& a, const StateRows& b, const MergedRows& out, int64_t num_rows, int64_t heads, int64_t dim,
                  const ElementRows& rows, ThreadPool* pool);

/// Row r of out = merge of rows [begin(r), end(r)) of `in`. A fixed number of states a row: indptr == nullptr, [r * fixed, (r + 1) * fixed)
/// with the states of a row `o_state`, `lse_state` elements apart and rows o_row, lse_row.
struct StateRanges {
  StateRows in;
  int64_t fixed = 0;
  int64_t o_state = 0, lse_state = 0;
  const int64_t* indptr = nullptr;  // [num_rows + 1] ragged: states of row r are rows [indptr[r], indptr[r + 1]) of `in`
};
void merge_ranges(const StateRanges& ranges, const MergedRows& out, int64_t num_rows, int64_t heads, int64_t dim, const ElementRows& rows,
                  ThreadPool* pool);

}  // namespace kvloom::cpu
