// The keys of a group: where list token t lies in K and V, and its position.
#pragma once

#include "kvloom/attn/mask.h"
#include "kvloom/cpu/chunk.h"

namespace kvloom::cpu {

/// Element offsets of a token for KV head 0, and its position.
struct KeySlot {
  int64_t k;
  int64_t v;
  int32_t pos;
};

/// Reads the page table entry of list token `t`: only for tokens that some row keeps (engines free pages that have left the window).
KVLOOM_HD KeySlot key_slot(const Job& job, const RowGroup& group, int32_t t) {
  const AttendParams& p = *job.params;
  const int32_t page_size = job.spec->page_size;
  int64_t entry = group.list_begin + t, page = entry;  // ragged: a token is a page
  int32_t in_page = 0;
  if (job.spec->storage == Storage::paged) {
    entry = group.list_begin + t / page_size;
    in_page = t % page_size;
    page = p.pages[entry];
  }
  KeySlot s{page * p.kv.k_page + in_page * p.kv.k_token, page * p.kv.v_page + in_page * p.kv.v_token, group.kv_pos0 + t};
  if (group.kv_position == KvPosition::page_table) s.pos = p.page_pos[entry] + in_page;
  if (group.kv_position == KvPosition::page_id) s.pos = static_cast<int32_t>(page * page_size + in_page);
  return s;
}

/// List tokens that a row at q_pos with `prefix` keeps, where positions are linear: [begin, end) and [0, prefix_end).
struct KeptTokens {
  int32_t begin;
  int32_t end;
  int32_t prefix_end;
};
KVLOOM_HD KeptTokens kept_tokens(const RowGroup& group, const KeyRange& range, int32_t q_pos, int32_t prefix) {
  const PositionRange k = kept_positions(range, q_pos);
  const int64_t most = int64_t(1) << 30;
  KeptTokens t;
  t.begin = static_cast<int32_t>(clamp_to<int64_t>(k.begin - group.kv_pos0, 0, most));
  t.end = static_cast<int32_t>(clamp_to<int64_t>(k.end - group.kv_pos0, 0, most));
  t.prefix_end = static_cast<int32_t>(clamp_to<int64_t>(int64_t(prefix) - group.kv_pos0, 0, most));
  return t;
}

}  // namespace kvloom::cpu
