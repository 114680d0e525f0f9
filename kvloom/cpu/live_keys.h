// Which keys of a block some row keeps. The others are not read: not their page ids, not their bytes.
#pragma once

#include "kvloom/cpu/keys.h"
#include "kvloom/cpu/rows.h"
#include "kvloom/variants/custom_mask.h"

namespace kvloom::cpu {

/// Columns [begin, end) of a block of keys whose column 0 is list token `token`.
struct KeyColumns {
  int32_t token;
  int32_t begin;
  int32_t end;
  const int32_t* key_pos;  // positions by column, where the group's are not linear; else nullptr
};

/// live[j] |= row r keeps column j by the variant's code, for columns [begin, end).
KVLOOM_HD void mark_by_code(const Job& job, const RowGroup& group, const KeyColumns& b, const PackedRow& r, int32_t begin, int32_t end,
                            uint8_t* live) {
  if (job.mark) return job.mark(job, group, b, r, begin, end, live);
  Coord c{r.request, r.q_index, r.q_pos, 0, 0, 0, 0};
  for (int32_t j0 = begin; j0 < end; j0 += 32) {
    c.kv_index = group.kv_index0 + b.token + j0;
    const uint32_t word = variants::CustomMask::keep32(c, job.params->variant);
    for (int32_t j = 0; j < min_of(32, end - j0); ++j) live[j0 + j] |= (word >> j) & 1;
  }
}

/// live[j] |= row r keeps column j, positions from a list.
KVLOOM_HD void mark_listed(const Job& job, const RowGroup& group, const KeyColumns& b, const PackedRow& r, uint8_t* live) {
  for (int32_t j = b.begin; j < b.end; ++j) {
    if (live[j] || !keeps(job.spec->variant.range, r.prefix, r.q_pos, b.key_pos[j])) continue;
    if (masks_by_code(job.spec->variant)) {
      mark_by_code(job, group, b, r, j, j + 1, live);
    } else {
      live[j] = 1;
    }
  }
}

/// live[j] = some row keeps column j; 0 outside [begin, end). `live` holds `columns`. Returns whether any is live.
KVLOOM_HD bool mark_live_keys(const Job& job, const RowGroup& group, const PackedRow* rows, const KeptTokens* kept, int32_t row_count,
                              const KeyColumns& b, int32_t columns, uint8_t* live) {
  __builtin_memset(live, 0, columns);
  for (int32_t i = 0; i < row_count; ++i) {
    const PackedRow& r = rows[i];
    if (i > 0 && r.token == rows[i - 1].token && !job.mark) continue;  // rows of one token keep the same; a user's hook knows the head
    if (b.key_pos) {
      mark_listed(job, group, b, r, live);
      continue;
    }
    const KeptTokens& t = kept[i];
    const int32_t prefix_end = clamp_to(t.prefix_end - b.token, b.begin, b.end);
    const int32_t begin = clamp_to(t.begin - b.token, prefix_end, b.end), end = clamp_to(t.end - b.token, begin, b.end);
    if (masks_by_code(job.spec->variant)) {
      mark_by_code(job, group, b, r, b.begin, prefix_end, live);
      mark_by_code(job, group, b, r, begin, end, live);
    } else {
      __builtin_memset(live + b.begin, 1, prefix_end - b.begin);
      __builtin_memset(live + begin, 1, end - begin);
      if (prefix_end - b.begin + end - begin == b.end - b.begin) return b.end > b.begin;  // one row keeps them all
    }
  }
  for (int32_t j = b.begin; j < b.end; ++j) {
    if (live[j]) return true;
  }
  return false;
}

}  // namespace kvloom::cpu
