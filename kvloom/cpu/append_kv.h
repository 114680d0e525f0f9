// New keys and values into their pages, converted, scaled and (keys) rotated on the way; and rotation by itself.
#pragma once

#include "kvloom/contract/params.h"
#include "kvloom/cpu/element_rows.h"
#include "kvloom/support/thread_pool.h"

namespace kvloom::cpu {

/// Rows [tokens, heads, dim], strides in elements.
struct TokenRows {
  void* data = nullptr;
  DType dtype = DType::f32;
  int64_t token = 0, head = 0;
  int32_t dim = 0;
};

/// Pages as the attention kernels see them: element d of slot t of page p for head h at p * page + t * token + h * head + d.
struct PageRows {
  void* data = nullptr;
  int64_t page = 0, token = 0, head = 0;
};

struct AppendParams {
  int64_t num_tokens = 0;
  int32_t num_kv_heads = 0;
  int32_t page_size = 1;
  TokenRows k_new, v_new;  // v_new.dim 0: no V
  PageRows k, v;
  DType kv_dtype = DType::f32;
  const int64_t* slot = nullptr;      // [num_tokens] page * page_size + place in the page; -1: skipped
  const int32_t* rope_pos = nullptr;  // [num_tokens]; read with rope.mode only
  RopeSpec rope;
  ScaleParams scale;
};

/// Everything has been checked. fp8 pages hold value / scale.
void append_kv(const AppendParams& params, const ElementRows& rows, ThreadPool* pool);

/// Rotates x in place, token i at pos[i].
void apply_rope(const TokenRows& x, int64_t num_tokens, int32_t num_heads, const int32_t* pos, const RopeSpec& rope,
                const ElementRows& rows, ThreadPool* pool);

}  // namespace kvloom::cpu
