// One step, as the caller describes it: which query tokens attend to which lists of KV blocks. Host memory, caller-owned, read by plan() only.
//
// Rows are query tokens, columns are KV slots, blocks of page_size slots are listed by `list_indptr` and `pages`: every store is one
// sparse matrix. Four forms of the same thing:
//   ragged     spec.storage == ragged: list_indptr[r] is request r's first token, kv_len[r] how many; no page ids
//   CSR        list_indptr[r] is the first entry of `pages` for request r
//   dense      a block table: `pages` is [num_requests, table_stride], row r starts at r * table_stride; list_indptr not given
//   per head   lists_per_kv_head: one list a (request, KV head), row r * num_kv_heads + h of list_indptr / table and of kv_len (Quest)
// `groups`, when not empty, replaces the request lists by explicit levels (composable formats).
#pragma once

#include "kvloom/base/span.h"
#include "kvloom/contract/index_view.h"

namespace kvloom {

/// How a key's position follows from where it stands in its list.
enum class KvPosition : int32_t {
  linear = 0,         // kv_pos0 + j for list token j
  page_table = 1,     // page_pos[entry] + offset in page: a caller's array parallel to `pages` (Quest gaps, rolling caches)
  page_id = 2,        // page id * page_size + offset in page (block-sparse matrices: the id is the block column)
};

/// One row group of an explicit level: some query tokens, all attending to one list of KV blocks.
struct LevelGroup {
  int32_t level = 0;
  int64_t list_begin = 0;    // first entry of the list in `pages` (ragged: first token)
  int32_t kv_begin = 0;      // first token of the list that counts (a rolling cache may begin inside a page)
  int32_t kv_end = 0;        // one past the last
  int32_t kv_pos0 = 0;       // position of list token 0 (KvPosition::linear)
  int32_t kv_index0 = 0;     // index of list token 0 in its request's KV: the custom mask's column
  int32_t kv_head = -1;      // -1: every KV head; else only this one
  Span<const int32_t> tokens;  // the query tokens (rows of Q), any order, need not be adjacent
};

struct Batch {
  int32_t num_requests = 0;
  IndexView qo_indptr;        // [num_requests + 1] rows of Q; request r owns [qo_indptr[r], qo_indptr[r+1])
  IndexView kv_len;           // [num_requests] tokens (lists_per_kv_head: [num_requests * num_kv_heads])
  IndexView list_indptr;      // see above; [lists] or [lists + 1]
  IndexView pages;            // page ids; not given for ragged storage
  int64_t table_stride = 0;   // > 0: dense block table
  bool lists_per_kv_head = false;
  KvPosition kv_position = KvPosition::linear;

  const int32_t* q_pos0 = nullptr;  // optional [num_requests]: position of a request's first query token; default kv_len - q_len
  const int32_t* q_pos = nullptr;   // optional [total query tokens]: a position of its own for every token (tree drafts)
  const int32_t* prefix = nullptr;  // optional [num_requests]: keys at kv_pos < prefix[r] are kept whatever the range says

  Span<const LevelGroup> groups;    // explicit levels; empty: one flat level, or levels found from the page tables
};

/// What a plan and its buffers are sized for: the worst batch that will ever be planned with them.
struct Capacity {
  int32_t max_requests = 0;
  int64_t max_query_tokens = 0;  // sum of q_len over a step
  int64_t max_kv_tokens = 0;     // sum of kv_len over a step (lists_per_kv_head: mean of the heads); 0: not bounded, fixed_split refuses it
  int64_t max_level_rows = 0;    // gathered query tokens over all shared levels of a step: every naming of a token but one; 0: none
  int32_t max_groups = 0;        // row groups; 0: derived (requests, KV heads where lists are per head, and levels)
};

}  // namespace kvloom
