// One step whose lengths stay on the GPU: what Engine::plan_on_device() plans. Arrays are device memory, read when the stream gets there; sizes are
// the host's, and a captured graph keeps both.
//
// A flat batch, in the forms of contract/batch.h: ragged, CSR, or a dense block table. Engines that pad their steps give the padded numbers:
// a request of no query tokens is none, and rows of Q behind qo_indptr[num_requests] are not touched.
#pragma once

#include "kvloom/contract/batch.h"

namespace kvloom {

struct DeviceBatch {
  int32_t num_requests = 0;
  int64_t num_tokens = 0;    // rows of Q and O in every run of the plan: at least qo_indptr[num_requests]
  int32_t max_q_len = 0;     // most query tokens of a request: decides which kernel runs the step
  IndexView qo_indptr;       // [num_requests + 1], int32 or int64
  IndexView kv_len;          // [lists] tokens, the step's own included. With q_pos0 and a causal range an upper bound will do: what no row
                             // sees is neither read nor counted. The list must have entries for it
  IndexView list_indptr;     // [lists] or [lists + 1]; not given with table_stride
  IndexView pages;           // page ids, not read here: the address may be null where run() is given them. Not given: ragged
  int64_t table_stride = 0;  // > 0: dense block table, pages is [lists, table_stride]
  bool lists_per_kv_head = false;  // a list a (request, KV head), at r * num_kv_heads + h; else lists are requests
  int64_t kv_tokens = 0;     // ragged: tokens that K and V have
  KvPosition kv_position = KvPosition::linear;
  const int32_t* q_pos0 = nullptr;  // optional [num_requests]: position of a request's first query token; default kv_len - q_len
  const int32_t* prefix = nullptr;  // optional [num_requests]: keys at kv_pos < prefix[r] are kept whatever the range says
};

}  // namespace kvloom
