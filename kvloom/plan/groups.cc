#include "kvloom/plan/groups.h"

namespace kvloom::plan {
namespace {

/// Row entries of all tokens, where tokens have positions of their own; token t is entry t.
void add_row_entries(const Batch& batch, GroupList& out) {
  for (int32_t r = 0; r < batch.num_requests; ++r) {
    const int32_t begin = int32_t(batch.qo_indptr[r]);
    const int32_t end = int32_t(batch.qo_indptr[r + 1]);
    for (int32_t t = begin; t < end; ++t) {
      out.row_entries.push_back({t, r, t - begin, batch.q_pos[t], batch.prefix ? batch.prefix[r] : 0});
    }
  }
}

}  // namespace

void flat_groups(const AttentionSpec& spec, const Batch& callers, GroupList& out) {
  const Batch batch = callers;  // our own: it need not be read again for every group that is written
  if (batch.q_pos) add_row_entries(batch, out);
  const int32_t lists = batch.lists_per_kv_head ? spec.num_kv_heads : 1;
  int64_t begin = 0;
  for (int32_t r = 0; r < batch.num_requests; ++r) {
    const int64_t end = batch.qo_indptr[r + 1];
    const int64_t q_len = end - begin;
    if (q_len == 0) continue;
    for (int32_t h = 0; h < lists; ++h) {
      const int64_t list = int64_t(r) * lists + h;
      const int64_t kv_len = batch.kv_len[list];
      RowGroup& g = out.groups.emplace_back();
      set_flat_group(g, r, batch.table_stride > 0 ? list * batch.table_stride : batch.list_indptr[list], begin, q_len, kv_len,
                     batch.q_pos0 ? batch.q_pos0[r] : default_q_pos0(kv_len, q_len), batch.prefix ? batch.prefix[r] : 0, batch.kv_position);
      if (batch.q_pos) g.row_list = int32_t(begin);
      if (batch.lists_per_kv_head) g.kv_head = h;
    }
    begin = end;
  }
}

}  // namespace kvloom::plan
