// The packed rows of a chunk, resolved: which token and head each is and where it stands.
#pragma once

#include "kvloom/cpu/chunk.h"

namespace kvloom::cpu {

/// One packed row of a chunk: a query token and one of the q heads that share the KV head.
struct PackedRow {
  int32_t token;  // row of Q, O and LSE
  int32_t request;
  int32_t q_index;  // of the token within its request
  int32_t q_pos;
  int32_t prefix;  // keys at positions before this are kept whatever the range says
  int32_t q_head;
};

/// Packed rows [row_begin, row_begin + row_count) of `group` for `kv_head`: token row / group_size, head row % group_size.
KVLOOM_HD void resolve_rows(const Job& job, const RowGroup& group, int32_t kv_head, int32_t row_begin, int32_t row_count, PackedRow* rows) {
  const int32_t group_size = job.spec->group_size();
  int32_t token = row_begin / group_size, head = row_begin % group_size;
  RowEntry entry = row_of(job.plan, group, token);
  for (int32_t i = 0; i < row_count; ++i) {
    rows[i] = {entry.token, entry.request, entry.q_index, entry.q_pos, entry.prefix, kv_head * group_size + head};
    if (++head == group_size && i + 1 < row_count) {
      head = 0;
      entry = row_of(job.plan, group, ++token);
    }
  }
}

}  // namespace kvloom::cpu
