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
    refuse(r, next - r.list_begin < need, plan::PlanFault::list_length, need, next - r.list_begin);
  }
  refuse(r, need > 0 && (r.list_begin > a.num_entries || r.list_begin + need > a.num_entries), plan::PlanFault::list_end, r.list_begin + need, a.num_entries);
}

/// Numbers of list `l` as they stand, and the next list's begin.
KVLOOM_HD Request load_request(const plan::DeviceArgs& a, int32_t l, int64_t& next) {
  const int32_t i = a.per_head ? l / a.request_lists : l;
  // All loads first: none waits for another.
  const bool table = a.table_stride > 0, closed = is_closed(a);
  const int64_t begin = a.qo_indptr[i], end = a.qo_indptr[i + 1], kv_len = a.kv_len[l];
  const int64_t list = table ? l * a.table_stride : a.list_indptr[l];
  next = closed ? a.list_indptr[l + 1] : list;
  const int32_t prefix = a.prefix ? a.prefix[i] : 0, given_pos = a.q_pos0 ? a.q_pos0[i] : 0;
  return {i, a.per_head ? l - i * a.request_lists : -1, begin, end - begin, kv_len, list, given_pos, prefix, plan::PlanFault::none, 0, 0};
}

/// Whether judge() finds nothing: all of it at once, since most requests are sound.
KVLOOM_HD bool is_sound(const plan::DeviceArgs& a, const Request& r, int64_t next) {
  const bool table = a.table_stride > 0, closed = is_closed(a);
  bool sound = (r.q_len >= 0) & (r.begin + r.q_len <= a.num_tokens) & (r.q_len <= a.max_q_len) & (r.request > 0 || r.begin == 0);
  sound &= uint64_t(r.kv_len) <= uint64_t(plan::kMaxListTokens) && r.prefix >= 0 && r.q_pos0 <= plan::kMaxListTokens && r.q_pos0 >= -plan::kMaxListTokens;
  if (!sound) return false;
  const int64_t need = plan::list_entries(a.page_size, r.kv_len), end = int64_t(uint64_t(r.list_begin) + uint64_t(need));  // wraps where the next line refuses
  return (r.list_begin >= 0) & (need == 0 || (r.list_begin <= a.num_entries && end <= a.num_entries)) & (!table || need <= a.table_stride) & (!closed || next >= end);
}

/// What is wrong with it, if anything is: the first of the faults in their order.
KVLOOM_HD Request judge(const plan::DeviceArgs& a, int32_t l) {
  int64_t next;
  Request r = load_request(a, l, next);
  const int64_t begin = r.begin, end = r.begin + r.q_len, kv_len = r.kv_len;
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
template <class Block>
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
template <class Block>
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
