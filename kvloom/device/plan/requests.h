// Requests: judged as the host judges a batch (plan/batch_check.cc), and made groups.
#pragma once

#include "kvloom/device/plan/memory.h"

namespace kvloom::device_plan {

/// A list's numbers and its request's, and what is wrong with them.
struct Request {
  int32_t request, kv_head;
  int64_t begin, q_len, kv_len, list_begin;
  int32_t q_pos0, prefix;
  plan::PlanFault fault;
  int64_t got, wanted;
};

/// Whether list_indptr says where the last list ends, too.
KVLOOM_HD bool is_closed(const plan::DeviceArgs& a) { return a.table_stride == 0 && a.list_indptr.size > int64_t(a.num_requests) * a.request_lists; }

// Numbers that nobody has judged yet may be anything: these wrap.
KVLOOM_HD int64_t sum_of(int64_t a, int64_t b) { return int64_t(uint64_t(a) + uint64_t(b)); }
KVLOOM_HD int64_t difference_of(int64_t a, int64_t b) { return int64_t(uint64_t(a) - uint64_t(b)); }

KVLOOM_HD bool refuse(Request& r, bool broken, plan::PlanFault fault, int64_t got, int64_t wanted) {
  if (!broken || r.fault != plan::PlanFault::none) return false;
  r.fault = fault, r.got = got, r.wanted = wanted;
  return true;
}

KVLOOM_HD void judge_list(const plan::DeviceArgs& a, int64_t next, Request& r) {
  const int64_t need = r.fault == plan::PlanFault::none ? plan::list_entries(a.page_size, r.kv_len) : 0;
  if (a.table_stride > 0) {
    refuse(r, need > a.table_stride, plan::PlanFault::list_length, need, a.table_stride);
    refuse(r, need > 0 && r.list_begin + need > a.num_entries, plan::PlanFault::list_end, r.list_begin + need, a.num_entries);
    return;
  }
  refuse(r, r.list_begin < 0, plan::PlanFault::list_begin, r.list_begin, 0);
  if (is_closed(a)) {
    refuse(r, next < r.list_begin, plan::PlanFault::list_order, next, r.list_begin);
    refuse(r, difference_of(next, r.list_begin) < need, plan::PlanFault::list_length, need, difference_of(next, r.list_begin));
  }
  const int64_t end = sum_of(r.list_begin, need);
  refuse(r, need > 0 && (r.list_begin > a.num_entries || end > a.num_entries), plan::PlanFault::list_end, end, a.num_entries);
}

KVLOOM_HD int32_t word_at(const char* p) {
#if defined(__CUDA_ARCH__)
  return *reinterpret_cast<const int32_t*>(p);
#else
  int32_t word;
  __builtin_memcpy(&word, p, sizeof word);
  return word;
#endif
}
/// An element as it comes from memory: two words where it has 64 bits, else one of them twice. Nothing is asked of them and no branch lies between the
/// loads of several, so that all are on their way at once.
struct Element {
  int32_t low, high;

  KVLOOM_HD Element(const IndexView& v, int64_t i) {
    const char* const p = static_cast<const char*>(v.data) + (i << (v.is_64 ? 3 : 2));
    low = word_at(p);
    high = word_at(p + (v.is_64 ? 4 : 0));
  }
  KVLOOM_HD int64_t of(const IndexView& v) const { return v.is_64 ? int64_t(uint64_t(uint32_t(high)) << 32 | uint32_t(low)) : low; }
};

/// Numbers of list `l` as they stand, and the next list's begin. What is not given is read from an array that is.
KVLOOM_HD Request load_request(const plan::DeviceArgs& a, int32_t l, int64_t& next) {
  const int32_t i = a.per_head ? l / a.request_lists : l;
  const bool table = a.table_stride > 0, closed = is_closed(a);
  const IndexView& lists = table ? a.kv_len : a.list_indptr;
  const char* const some = static_cast<const char*>(a.qo_indptr.data);
  const Element begin(a.qo_indptr, i), end(a.qo_indptr, int64_t(i) + 1), length(a.kv_len, l), list(lists, l), behind(lists, l + (closed ? 1 : 0));
  const int32_t prefix = word_at((a.prefix ? reinterpret_cast<const char*>(a.prefix) : some) + int64_t(i) * 4);
  const int32_t pos = word_at((a.q_pos0 ? reinterpret_cast<const char*>(a.q_pos0) : some) + int64_t(i) * 4);
  const int64_t first = begin.of(a.qo_indptr), list_begin = table ? l * a.table_stride : list.of(lists);
  next = closed ? behind.of(lists) : list_begin;
  return {i,          a.per_head ? l - i * a.request_lists : -1, first, difference_of(end.of(a.qo_indptr), first), length.of(a.kv_len), list_begin, a.q_pos0 ? pos : 0,
          a.prefix ? prefix : 0, plan::PlanFault::none,          0,     0};
}

/// Whether judge() finds nothing: all of it at once, since most requests are sound.
KVLOOM_HD bool is_sound(const plan::DeviceArgs& a, const Request& r, int64_t next) {
  const bool table = a.table_stride > 0, closed = is_closed(a);
  bool sound = (r.q_len >= 0) & (sum_of(r.begin, r.q_len) <= a.num_tokens) & (r.q_len <= a.max_q_len) & ((r.request > 0) | (r.begin == 0));
  sound &= (uint64_t(r.kv_len) <= uint64_t(plan::kMaxListTokens)) & (r.prefix >= 0) & (r.q_pos0 <= plan::kMaxListTokens) & (r.q_pos0 >= -plan::kMaxListTokens);
  const int64_t need = plan::list_entries(a.page_size, r.kv_len), end = sum_of(r.list_begin, need);
  return sound & (r.list_begin >= 0) & ((need == 0) | ((r.list_begin <= a.num_entries) & (end <= a.num_entries))) & (!table | (need <= a.table_stride)) &
         (!closed | (next >= end));
}

/// What is wrong with it, if anything is: the first of the faults in their order.
KVLOOM_HD Request judge(const plan::DeviceArgs& a, int32_t l) {
  int64_t next;
  Request r = load_request(a, l, next);
  const int64_t begin = r.begin, end = sum_of(r.begin, r.q_len), kv_len = r.kv_len;
  const int32_t i = r.request, given_pos = r.q_pos0, prefix = r.prefix;
  refuse(r, i == 0 && begin != 0, plan::PlanFault::first_token, begin, 0);
  refuse(r, end < begin, plan::PlanFault::token_order, end, begin);
  refuse(r, end > a.num_tokens, plan::PlanFault::query_tokens, end, a.num_tokens);
  refuse(r, r.q_len > a.max_q_len, plan::PlanFault::query_length, r.q_len, a.max_q_len);
  refuse(r, kv_len < 0 || kv_len > plan::kMaxListTokens, plan::PlanFault::kv_length, kv_len, plan::kMaxListTokens);
  judge_list(a, next, r);
  refuse(r, given_pos > plan::kMaxListTokens || given_pos < -plan::kMaxListTokens, plan::PlanFault::position, given_pos, plan::kMaxListTokens);
  refuse(r, prefix < 0, plan::PlanFault::prefix, prefix, 0);
  return r;
}

/// The group of a request in the plan.
template <class Block, class Step>
KVLOOM_HD void put_group(Block& block, const Step& s, const Request& r, int32_t group) {
  RowGroup g{};
  plan::set_flat_group(g, r.request, r.list_begin, r.begin, r.q_len, r.kv_len, r.q_pos0, r.prefix, s.args.kv_position);
  g.kv_head = r.kv_head;
  block.put(&s.row_groups()[group], g);
}

/// Of a batch with so many tokens of K and V. `fault`: kNone - the first list that has one; 0: none has.
KVLOOM_HD plan::PlanVerdict verdict_of(const plan::DeviceArgs& a, uint64_t fault, int64_t kv_tokens) {
  if (fault > 0) {
    const Request r = judge(a, int32_t(kNone - fault));
    return {r.fault, r.request, r.kv_head, 0, r.got, r.wanted};
  }
  if (a.max_kv_tokens > 0 && kv_tokens > a.max_kv_tokens * a.request_lists) {
    return {plan::PlanFault::kv_tokens, -1, -1, 0, ceil_div<int64_t>(kv_tokens, a.request_lists), a.max_kv_tokens};
  }
  return {plan::PlanFault::none, -1, -1, 0, 0, 0};
}

/// Groups of the requests with query tokens, in the plan and in the table. The verdict is that of the whole batch.
template <class Block, class Step>
KVLOOM_HD plan::PlanVerdict make_groups(Block& block, Step& s, Totals& totals) {
  const plan::DeviceArgs& a = s.args;
  uint64_t fault[1] = {0};  // kNone - the first list that has one
  const auto read = [&](int32_t i, Request& r) -> Sum {  // groups, tiles, tokens of K and V
    int64_t next;
    r = load_request(a, i, next);
    if (!is_sound(a, r, next)) {
      fault[0] = max_of(fault[0], uint64_t(kNone - i));
      r.q_len = 0;
      return {};
    }
    if (!a.q_pos0) r.q_pos0 = plan::default_q_pos0(r.kv_len, r.q_len);
    if (r.q_len == 0) return Sum::of(0, 0, r.kv_len);
    return Sum::of(1, int32_t(s.shape(s.class_of(int32_t(r.q_len))).tiles(r.q_len)), r.kv_len);
  };
  const auto write = [&](int32_t i, const Request& r, const Sum& before) {
    if (r.q_len == 0) return;
    if (block.writes(i)) put_group(block, s, r, before.first());
    s.groups[before.first()] = {before.second(), int32_t(r.begin), int32_t(r.q_len), int32_t(r.kv_len), r.q_pos0, r.prefix};
  };
  const Sum sum = block.template scan_most<Request>(a.num_requests * a.request_lists, fault, read, write);
  totals.groups = sum.first();
  totals.tiles = sum.second();
  return verdict_of(a, fault[0], sum.number);
}

}  // namespace kvloom::device_plan
