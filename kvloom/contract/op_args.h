// What the operations around attention are given, on every backend: one struct each. Pointers live where the backend runs, strides are in
// elements.
#pragma once

#include "kvloom/contract/index_view.h"
#include "kvloom/contract/params.h"

namespace kvloom {

/// States of [rows, heads]: element d of O at o + row * o_row + head * o_head + d, LSE (natural log) at lse + row * lse_row + head * lse_head;
/// where a row has several, they are o_state and lse_state apart.
struct StateView {
  const void* o = nullptr;
  DType dtype = DType::f32;  // f32, f16 or bf16
  int64_t o_row = 0, o_head = 0, o_state = 0;
  const float* lse = nullptr;
  int64_t lse_row = 0, lse_head = 0, lse_state = 0;
};

/// Row r of the output is the merge, in order, of: row r of in[0] and of in[1] (lists == 2); `fixed` states of row r of in[0]
/// (lists == 1, indptr not given); rows [indptr[r], indptr[r + 1]) of in[0]. Semantics: api/ops.h, merge_states.
struct MergeArgs {
  StateView in[2];
  int32_t lists = 1;
  int64_t fixed = 1;
  IndexView indptr;  // [num_rows + 1]
  void* o = nullptr;
  DType dtype = DType::f32;
  int64_t o_row = 0, o_head = 0;
  float* lse = nullptr;  // nullptr: not wanted
  int64_t lse_row = 0, lse_head = 0;
  int64_t num_rows = 0;
  int64_t heads = 0;
  int64_t dim = 0;
};

/// Rows [tokens, heads, dim].
struct TokenView {
  void* data = nullptr;
  DType dtype = DType::f32;
  int64_t token = 0, head = 0;
  int32_t dim = 0;
};

/// New keys and values into their pages: converted, divided by the scales, keys rotated first. Semantics: api/ops.h, append_kv.
struct AppendArgs {
  int64_t num_tokens = 0;
  int32_t num_kv_heads = 0;
  int32_t page_size = 1;
  TokenView k_new, v_new;  // v_new.dim 0: no V
  KvView kv;               // written
  DType kv_dtype = DType::f32;
  const int64_t* slot = nullptr;      // [num_tokens] page * page_size + place in the page; below 0: skipped
  const int32_t* rope_pos = nullptr;  // [num_tokens]; read with rope.mode only
  RopeSpec rope;
  ScaleParams scale;
};

/// Rotation in place: token i of x at pos[i].
struct RopeArgs {
  TokenView x;
  int64_t num_tokens = 0;
  int32_t heads = 0;
  const int32_t* pos = nullptr;
  RopeSpec rope;
};

}  // namespace kvloom
