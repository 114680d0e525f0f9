#include "kvloom/plan/batch_check.h"

#include "kvloom/base/math.h"
#include "kvloom/support/check.h"

namespace kvloom::plan {
namespace {

void over(const char* what, int64_t got, const char* limit_name, int64_t limit) {
  fail(ErrorCode::over_capacity, "plan: {}: got {}, wanted at most {} = {}; make the engine for a larger Capacity", what, got, limit_name,
       limit);
}

constexpr int64_t kMaxListBegin = INT64_MAX / 2;  // offsets of tokens and entries behind it stay within 64 bits

/// What require() does, where wording the arguments costs more than the check.
template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> message, Args&&... args) {
  fail(ErrorCode::invalid_argument, message, std::forward<Args>(args)...);
}

/// f(the array as it is typed). A loop over an IndexView asks for the type at every element.
template <class F>
auto typed(const IndexView& view, F&& f) {
  return view.is_64 ? f(static_cast<const int64_t*>(view.data)) : f(static_cast<const int32_t*>(view.data));
}

// Nearly every batch is sound, so arrays are first judged as a whole, without a branch; only where something is wrong are they walked
// again, to name it.

bool never_decreases(const IndexView& view, int64_t n) {
  return typed(view, [n](const auto* p) {
    bool sound = true;
    for (int64_t i = 1; i < n; ++i) sound &= p[i] >= p[i - 1];
    return sound;
  });
}

/// Lists [begin, end) that have room for their tokens: in themselves, and in `pages` unless storage is ragged.
bool lists_hold(const AttentionSpec& spec, const Batch& batch, int64_t lists) {
  const bool paged = spec.storage == Storage::paged;
  const bool closed = batch.list_indptr.size == lists + 1;
  const int64_t page_size = paged ? spec.page_size : 1;
  const int64_t entries = paged ? max_of<int64_t>(batch.pages.size, 0) : kMaxListBegin;
  auto tokens_in = [page_size](int64_t from, int64_t to) {  // as many as count
    return min_of(to > from ? to - from : 0, kMaxListTokens) * page_size;
  };
  return typed(batch.list_indptr, [&](const auto* indptr) {
    return typed(batch.kv_len, [&](const auto* kv_len) {
      bool sound = true;
      for (int64_t i = 0; i < lists; ++i) {
        const int64_t begin = max_of<int64_t>(indptr[i], 0);
        sound &= (indptr[i] >= 0) & (tokens_in(begin, entries) >= kv_len[i]);
        if (closed) sound &= (indptr[i + 1] >= begin) & (tokens_in(begin, indptr[i + 1]) >= kv_len[i]);
      }
      return sound;
    });
  });
}

/// "request 3" or, where lists are per head, "request 3, KV head 1". Only for a message: it allocates.
std::string name_of_list(const AttentionSpec& spec, const Batch& batch, int64_t list) {
  if (!batch.lists_per_kv_head) return kvloom::format("request {}", list);
  return kvloom::format("request {}, KV head {}", list / spec.num_kv_heads, list % spec.num_kv_heads);
}

void check_queries(const Capacity& capacity, const Batch& batch) {
  const IndexView& qo = batch.qo_indptr;
  const int64_t entries = int64_t(batch.num_requests) + 1;
  require(qo.given(), "plan: qo_indptr: got a null pointer, wanted {} entries", entries);
  require(qo.size == entries, "plan: qo_indptr: got {} entries, wanted num_requests + 1 = {}", qo.size, entries);
  const bool sound = never_decreases(qo, qo.size);
  require(qo[0] == 0, "plan: qo_indptr: request 0: got {}, wanted 0; pass Q from its first row", qo[0]);
  for (int64_t r = 0; r < batch.num_requests && !sound; ++r) {
    require(qo[r + 1] >= qo[r], "plan: qo_indptr: request {}: got {} after {}, wanted no decrease", r, qo[r + 1], qo[r]);
  }
  const int64_t tokens = qo[batch.num_requests];
  if (tokens > capacity.max_query_tokens) over("query tokens", tokens, "Capacity.max_query_tokens", capacity.max_query_tokens);
}

/// kv_len of every list, and their sum.
void check_lengths(const AttentionSpec& spec, const Capacity& capacity, const Batch& batch, int64_t lists) {
  const IndexView& kv = batch.kv_len;
  require(kv.given(), "plan: kv_len: got a null pointer, wanted {} entries", lists);
  require(kv.size == lists, "plan: kv_len: got {} entries, wanted {}", kv.size, lists);
  bool sound = true;
  int64_t sum = 0;
  typed(kv, [&](const auto* length) {
    for (int64_t i = 0; i < lists; ++i) {
      sound &= uint64_t(length[i]) <= uint64_t(kMaxListTokens);
      sum += sound ? length[i] : 0;
    }
  });
  for (int64_t i = 0; i < lists && !sound; ++i) {
    if (kv[i] < 0 || kv[i] > kMaxListTokens)
      refuse("plan: kv_len: {}: got {}, wanted 0 to {}", name_of_list(spec, batch, i), kv[i], kMaxListTokens);
  }
  if (capacity.max_kv_tokens == 0) return;
  const int64_t heads = batch.lists_per_kv_head ? spec.num_kv_heads : 1;
  if (sum > capacity.max_kv_tokens * heads) {
    over("KV tokens", (sum + heads - 1) / heads, "Capacity.max_kv_tokens", capacity.max_kv_tokens);
  }
}

void check_dense_table(const AttentionSpec& spec, const Batch& batch, int64_t lists) {
  require(spec.storage == Storage::paged, "plan: table_stride: got {} with ragged storage, wanted 0; a block table needs paged storage",
          batch.table_stride);
  require(!batch.list_indptr.given(), "plan: list_indptr: got one beside table_stride = {}, wanted either; a dense table has no indptr",
          batch.table_stride);
  require(batch.table_stride <= kMaxListTokens, "plan: table_stride: got {}, wanted at most {}", batch.table_stride, kMaxListTokens);
  for (int64_t i = 0; i < lists; ++i) {
    const int64_t need = list_entries(spec, batch.kv_len[i]);
    if (need > batch.table_stride)
      refuse("plan: kv_len: {}: got {} tokens, which take {} pages of {}, wanted at most table_stride = {}", name_of_list(spec, batch, i),
             batch.kv_len[i], need, spec.page_size, batch.table_stride);
    if (need > 0 && i * batch.table_stride + need > batch.pages.size)
      refuse("plan: pages: {}: got {} entries, wanted {} for this row of the table", name_of_list(spec, batch, i), batch.pages.size,
             i * batch.table_stride + need);
  }
}

void check_indptr_lists(const AttentionSpec& spec, const Batch& batch, int64_t lists) {
  const IndexView& indptr = batch.list_indptr;
  const char* unit = spec.storage == Storage::paged ? "pages" : "tokens";
  require(indptr.given(), "plan: list_indptr: got a null pointer, wanted {} or {} entries; or set table_stride for a dense block table",
          lists, lists + 1);
  require(indptr.size == lists || indptr.size == lists + 1, "plan: list_indptr: got {} entries, wanted {} or {}", indptr.size, lists,
          lists + 1);
  if (lists_hold(spec, batch, lists)) return;
  const bool closed = indptr.size == lists + 1;
  for (int64_t i = 0; i < lists; ++i) {
    const int64_t begin = indptr[i];
    const int64_t need = list_entries(spec, batch.kv_len[i]);
    if (begin < 0) refuse("plan: list_indptr: {}: got {}, wanted 0 or more", name_of_list(spec, batch, i), begin);
    if (closed) {
      if (indptr[i + 1] < begin)
        refuse("plan: list_indptr: {}: got {} after {}, wanted no decrease", name_of_list(spec, batch, i), indptr[i + 1], begin);
      if (indptr[i + 1] - begin < need)
        refuse("plan: list_indptr: {}: got {} {}, wanted {} for kv_len = {}", name_of_list(spec, batch, i), indptr[i + 1] - begin, unit,
               need, batch.kv_len[i]);
    }
    if (spec.storage == Storage::ragged && need > 0 && begin > kMaxListBegin - need)
      refuse("plan: list_indptr: {}: got {}, wanted at most {}", name_of_list(spec, batch, i), begin, kMaxListBegin - need);
    if (spec.storage == Storage::paged && need > 0) {
      if (begin > batch.pages.size || begin + need > batch.pages.size)
        refuse("plan: pages: {}: got {} entries, wanted {} for kv_len = {}", name_of_list(spec, batch, i), batch.pages.size, begin + need,
               batch.kv_len[i]);
    }
  }
}

void check_positions(const AttentionSpec& spec, const Batch& batch) {
  const int64_t tokens = batch.num_requests > 0 ? batch.qo_indptr[batch.num_requests] : 0;
  auto in_range = [](int64_t pos) { return pos >= -kMaxListTokens && pos <= kMaxListTokens; };
  require(!(batch.q_pos && batch.q_pos0), "plan: q_pos and q_pos0: got both, wanted at most one of them");
  for (int64_t r = 0; batch.q_pos0 && r < batch.num_requests; ++r) {
    require(in_range(batch.q_pos0[r]), "plan: q_pos0: request {}: got {}, wanted -{} to {}", r, batch.q_pos0[r], kMaxListTokens,
            kMaxListTokens);
  }
  for (int64_t t = 0; batch.q_pos && t < tokens; ++t) {
    require(in_range(batch.q_pos[t]), "plan: q_pos: token {}: got {}, wanted -{} to {}", t, batch.q_pos[t], kMaxListTokens, kMaxListTokens);
  }
  for (int64_t r = 0; batch.prefix && r < batch.num_requests; ++r) {
    require(batch.prefix[r] >= 0, "plan: prefix: request {}: got {}, wanted 0 or more", r, batch.prefix[r]);
  }
  const int32_t kind = int32_t(batch.kv_position);
  require(kind >= 0 && kind <= 2, "plan: kv_position: got {}, wanted linear, page_table or page_id", kind);
  require(batch.kv_position == KvPosition::linear || spec.storage == Storage::paged,
          "plan: kv_position: got {} with ragged storage, wanted linear; page positions need paged storage",
          batch.kv_position == KvPosition::page_table ? "page_table" : "page_id");
}

void check_group(const AttentionSpec& spec, const Batch& batch, int64_t index, int64_t total_tokens) {
  const LevelGroup& g = batch.groups[index];
  auto check = [&](const char* what, int64_t got, int64_t low, int64_t high) {
    require(got >= low && got <= high, "plan: groups[{}].{}: got {}, wanted {} to {}", index, what, got, low, high);
  };
  check("level", g.level, 0, 255);
  check("kv_head", g.kv_head, -1, spec.num_kv_heads - 1);
  check("list_begin", g.list_begin, 0, kMaxListBegin);
  check("kv_begin", g.kv_begin, 0, kMaxListTokens);
  check("kv_end", g.kv_end, g.kv_begin, kMaxListTokens);
  check("kv_pos0", g.kv_pos0, -kMaxListTokens, kMaxListTokens);
  check("kv_index0", g.kv_index0, -kMaxListTokens, kMaxListTokens);
  if (spec.storage == Storage::paged && g.kv_end > g.kv_begin) {
    const int64_t need = g.list_begin + list_entries(spec, g.kv_end);
    require(need <= batch.pages.size, "plan: pages: groups[{}]: got {} entries, wanted {} for list_begin = {}, kv_end = {}", index,
            batch.pages.size, need, g.list_begin, g.kv_end);
  }
  check("tokens.size", g.tokens.size, 0, total_tokens);  // a token once
  require(g.tokens.data || g.tokens.size == 0, "plan: groups[{}].tokens: got a null pointer, wanted {} tokens", index, g.tokens.size);
  for (int64_t i = 0; i < g.tokens.size; ++i) {
    require(g.tokens[i] >= 0 && g.tokens[i] < total_tokens,
            "plan: groups[{}].tokens[{}]: got {}, wanted 0 to {} (query tokens of the step)", index, i, g.tokens[i], total_tokens - 1);
  }
}

void check_groups(const AttentionSpec& spec, const Capacity& capacity, const Batch& batch) {
  require(!batch.lists_per_kv_head, "plan: groups: got {} beside lists_per_kv_head, wanted either; a group names its own kv_head",
          batch.groups.size);
  require(batch.kv_len.given() || batch.q_pos || batch.q_pos0,
          "plan: groups: got neither kv_len, q_pos nor q_pos0, wanted one; query positions can't be known");
  if (batch.kv_len.given()) {
    require(batch.kv_len.size == batch.num_requests, "plan: kv_len: got {} entries, wanted {}", batch.kv_len.size, batch.num_requests);
    for (int64_t r = 0; r < batch.num_requests; ++r) {
      require(batch.kv_len[r] >= 0 && batch.kv_len[r] <= kMaxListTokens, "plan: kv_len: request {}: got {}, wanted 0 to {}", r,
              batch.kv_len[r], kMaxListTokens);
    }
  }
  int64_t head_tokens = 0;  // KV tokens of a head, summed over heads
  for (int64_t i = 0; i < batch.groups.size; ++i) {
    check_group(spec, batch, i, batch.num_requests > 0 ? batch.qo_indptr[batch.num_requests] : 0);
    const LevelGroup& g = batch.groups[i];
    head_tokens += (int64_t(g.kv_end) - g.kv_begin) * (g.kv_head < 0 ? spec.num_kv_heads : 1);
  }
  const int64_t tokens = (head_tokens + spec.num_kv_heads - 1) / spec.num_kv_heads;
  if (capacity.max_kv_tokens > 0 && tokens > capacity.max_kv_tokens) {
    over("KV tokens of the groups", tokens, "Capacity.max_kv_tokens", capacity.max_kv_tokens);
  }
}

}  // namespace

void check_batch(const AttentionSpec& spec, const Capacity& capacity, const Batch& batch) {
  require(batch.num_requests >= 0, "plan: num_requests: got {}, wanted 0 or more", batch.num_requests);
  require(batch.table_stride >= 0, "plan: table_stride: got {}, wanted 0 or more", batch.table_stride);
  require(batch.groups.size >= 0 && (batch.groups.data || batch.groups.size == 0), "plan: groups: got a null pointer, wanted {} groups",
          batch.groups.size);
  if (batch.num_requests > capacity.max_requests) over("requests", batch.num_requests, "Capacity.max_requests", capacity.max_requests);
  if (batch.num_requests > 0 || batch.qo_indptr.given()) check_queries(capacity, batch);
  check_positions(spec, batch);
  if (!batch.groups.empty()) return check_groups(spec, capacity, batch);
  if (batch.num_requests == 0) return;
  const int64_t lists = num_lists(spec, batch);
  check_lengths(spec, capacity, batch, lists);
  if (batch.table_stride > 0) return check_dense_table(spec, batch, lists);
  check_indptr_lists(spec, batch, lists);
}

}  // namespace kvloom::plan
