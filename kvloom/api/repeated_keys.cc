#include "kvloom/api/repeated_keys.h"

#include "kvloom/base/math.h"
#include "kvloom/support/check.h"

namespace kvloom::api {
namespace {

/// Positions [begin, end) at which both groups have the same slots, page by page; begin == end: nowhere.
struct Positions {
  int64_t begin = 0, end = 0;
};

/// The first of them from position `from` on.
Positions same_slots(const AttentionSpec& spec, const Batch& batch, const LevelGroup& a, const LevelGroup& b, bool read_ids, int64_t from) {
  if (a.kv_head >= 0 && b.kv_head >= 0 && a.kv_head != b.kv_head) return {};
  const int64_t index_a = int64_t(a.kv_index0) - a.kv_pos0, index_b = int64_t(b.kv_index0) - b.kv_pos0;
  if (spec.variant.custom_mask && index_a != index_b) return {};  // other bits decide
  const int64_t begin = max_of(max_of(int64_t(a.kv_pos0) + a.kv_begin, int64_t(b.kv_pos0) + b.kv_begin), from);
  const int64_t end = min_of(int64_t(a.kv_pos0) + a.kv_end, int64_t(b.kv_pos0) + b.kv_end);
  if (begin >= end) return {};
  if (spec.storage == Storage::ragged) return a.list_begin - a.kv_pos0 == b.list_begin - b.kv_pos0 ? Positions{begin, end} : Positions{};
  const int64_t size = spec.page_size;
  if ((int64_t(a.kv_pos0) - b.kv_pos0) % size != 0) return {};  // other slots of whatever page
  for (int64_t p = begin; p < end;) {
    const int64_t in_a = p - a.kv_pos0, entry_a = a.list_begin + in_a / size, entry_b = b.list_begin + (p - b.kv_pos0) / size;
    const int64_t next = min_of(end, p + size - in_a % size);
    if (entry_a == entry_b || (read_ids && batch.pages[entry_a] == batch.pages[entry_b])) return {p, next};
    p = next;
  }
  return {};
}

bool sees(const KeyRange& range, int64_t q_pos, int64_t prefix, int64_t p) {
  if (p < prefix) return true;
  return (!range.causal || p <= q_pos) && (range.left < 0 || p >= q_pos - range.left) && (range.right < 0 || p <= q_pos + range.right);
}

}  // namespace

void RepeatedKeys::index_tokens(const Batch& batch) {
  begin_.assign(size_t(batch.qo_indptr[batch.num_requests]) + 2, 0);  // counted one place further on: the second pass moves them back
  for (const LevelGroup& g : batch.groups) {
    for (const int32_t token : g.tokens) ++begin_[size_t(token) + 2];
  }
  for (size_t t = 2; t < begin_.size(); ++t) begin_[t] += begin_[t - 1];
  group_.resize(size_t(begin_.back()));
  for (int64_t i = 0; i < batch.groups.size; ++i) {
    for (const int32_t token : batch.groups[i].tokens) group_[size_t(begin_[size_t(token) + 1]++)] = int32_t(i);
  }
}

void RepeatedKeys::check(const AttentionSpec& spec, const Batch& batch, bool read_ids) {
  if (batch.groups.size < 2 || batch.kv_position != KvPosition::linear || batch.num_requests == 0) return;
  index_tokens(batch);
  int32_t last_a = -1, last_b = -1;  // tokens of a request have the same groups
  Positions of_pair;
  for (int32_t r = 0; r < batch.num_requests; ++r) {
    const int64_t first = batch.qo_indptr[r], end = batch.qo_indptr[r + 1];
    for (int64_t t = first; t < end; ++t) {
      for (int32_t i = begin_[size_t(t)]; i < begin_[size_t(t) + 1]; ++i) {
        for (int32_t j = begin_[size_t(t)]; j < i; ++j) {
          const int32_t a = group_[size_t(j)], b = group_[size_t(i)];
          if (a != last_a || b != last_b) of_pair = same_slots(spec, batch, batch.groups[a], batch.groups[b], read_ids, INT64_MIN), last_a = a, last_b = b;
          if (of_pair.begin >= of_pair.end) continue;
          const int64_t q_pos = batch.q_pos ? batch.q_pos[t] : (t - first) + (batch.q_pos0 ? batch.q_pos0[r] : batch.kv_len[r] - (end - first));
          const int64_t prefix = batch.prefix ? batch.prefix[r] : INT64_MIN;
          for (Positions same = of_pair; same.begin < same.end; same = same_slots(spec, batch, batch.groups[a], batch.groups[b], read_ids, same.end)) {
            for (int64_t p = same.begin; p < same.end; ++p) {
              require(!sees(spec.variant.range, q_pos, prefix, p),
                      "plan: groups[{}], groups[{}]: query token {}: both have the key at position {}, which would count twice; wanted keys once: let one "
                      "group begin (kv_begin, list_begin, kv_pos0) where the other ends",
                      a, b, t, p);
            }
          }
        }
      }
    }
  }
}

}  // namespace kvloom::api
