#include "kvloom/api/repeated_keys.h"

#include "kvloom/attn/mask.h"
#include "kvloom/base/math.h"
#include "kvloom/contract/user_variant.h"
#include "kvloom/support/check.h"

#include <algorithm>

namespace kvloom::api {
namespace {

/// The first position of [begin, end) that a token at q_pos sees; `end`: it sees none.
int64_t first_seen(const KeyRange& range, int32_t q_pos, int64_t prefix, int64_t begin, int64_t end) {
  if (begin < min_of(prefix, end)) return begin;
  const PositionRange kept = kept_positions(range, q_pos);
  const int64_t low = max_of(begin, kept.begin), high = min_of(end, kept.end);
  return low < high ? low : end;
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

bool RepeatedKeys::has_groups_of_the_one_before(int64_t token) const {
  if (token == 0) return false;
  const int32_t* const all = group_.data();
  return std::equal(all + begin_[size_t(token) - 1], all + begin_[size_t(token)], all + begin_[size_t(token)], all + begin_[size_t(token) + 1]);
}

void RepeatedKeys::add_same(const AttentionSpec& spec, const Batch& batch, int32_t number_a, int32_t number_b, bool read_ids) {
  const LevelGroup &a = batch.groups[number_a], &b = batch.groups[number_b];
  if (a.kv_head >= 0 && b.kv_head >= 0 && a.kv_head != b.kv_head) return;
  const bool by_index = spec.variant.custom_mask || (spec.variant.user != nullptr && spec.variant.user->keep != nullptr);
  if (by_index && int64_t(a.kv_index0) - a.kv_pos0 != int64_t(b.kv_index0) - b.kv_pos0) return;  // what hides the key from one may not from the other
  const int64_t begin = max_of(int64_t(a.kv_pos0) + a.kv_begin, int64_t(b.kv_pos0) + b.kv_begin), end = min_of(int64_t(a.kv_pos0) + a.kv_end, int64_t(b.kv_pos0) + b.kv_end);
  if (begin >= end) return;
  if (spec.storage == Storage::ragged) {
    if (a.list_begin - a.kv_pos0 == b.list_begin - b.kv_pos0) same_.push_back({number_a, number_b, begin, end});
    return;
  }
  const int64_t size = spec.page_size;
  if ((int64_t(a.kv_pos0) - b.kv_pos0) % size != 0) return;  // other slots of whatever page
  for (int64_t p = begin, next = 0; p < end; p = next) {
    const int64_t in_a = p - a.kv_pos0, entry_a = a.list_begin + in_a / size, entry_b = b.list_begin + (p - b.kv_pos0) / size;
    next = min_of(end, p + size - in_a % size);
    if (entry_a != entry_b && !(read_ids && batch.pages[entry_a] == batch.pages[entry_b])) continue;
    if (!same_.empty() && same_.back().a == number_a && same_.back().b == number_b && same_.back().end == p) same_.back().end = next;
    else same_.push_back({number_a, number_b, p, next});
  }
}

void RepeatedKeys::find_same(const AttentionSpec& spec, const Batch& batch, int64_t token, bool read_ids) {
  same_.clear();
  for (int32_t i = begin_[size_t(token)]; i < begin_[size_t(token) + 1]; ++i) {
    for (int32_t j = begin_[size_t(token)]; j < i; ++j) add_same(spec, batch, group_[size_t(j)], group_[size_t(i)], read_ids);
  }
}

void RepeatedKeys::check(const AttentionSpec& spec, const Batch& batch, bool read_ids) {
  if (batch.groups.size < 2 || batch.kv_position != KvPosition::linear || batch.num_requests == 0) return;
  index_tokens(batch);
  for (int32_t r = 0; r < batch.num_requests; ++r) {
    const int64_t first = batch.qo_indptr[r], end = batch.qo_indptr[r + 1];
    const int64_t prefix = batch.prefix ? batch.prefix[r] : 0;
    for (int64_t t = first; t < end; ++t) {
      if (!has_groups_of_the_one_before(t)) find_same(spec, batch, t, read_ids);  // tokens of a request mostly have the same
      if (same_.empty()) continue;
      const int64_t q_pos = batch.q_pos ? batch.q_pos[t] : (t - first) + (batch.q_pos0 ? batch.q_pos0[r] : batch.kv_len[r] - (end - first));
      for (const Same& s : same_) {
        const int64_t p = first_seen(spec.variant.range, int32_t(q_pos), prefix, s.begin, s.end);
        require(p == s.end,
                "plan: groups[{}], groups[{}]: query token {}: both have the key at position {}, which would count twice; wanted keys once: let one "
                "group begin (kv_begin, list_begin, kv_pos0) where the other ends",
                s.a, s.b, t, p);
      }
    }
  }
}

}  // namespace kvloom::api
