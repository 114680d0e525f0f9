// Requests that are a tile of class 0 each (DeviceArgs::one_tile), as of decode steps: judged, and made groups and tiles, in one pass.
#pragma once

#include "kvloom/device/plan/requests.h"
#include "kvloom/device/plan/tiles.h"

namespace kvloom::device_plan {

inline constexpr int kGroupBits = 20;  // of what is summed up; keys lie above
static_assert(plan::kMaxOneTile <= 1 << kGroupBits && int64_t(plan::kMaxOneTile) * plan::kMaxListTokens <= int64_t(1) << (64 - kGroupBits));

struct OneTile {
  Request request;
  TokenRange seen;
};

/// The keys that the rows of a request see.
template <class Step>
KVLOOM_HD TokenRange seen_by(const Step& s, const Request& r) {
  RowGroup keys{};
  keys.kv_end = int32_t(r.kv_len);
  keys.kv_position = s.args.kv_position;
  return visible_tokens(keys, s.args.range, r.q_pos0, r.q_pos0 + int32_t(r.q_len) - 1, r.prefix);
}

/// Cost of so many groups, which see so many keys altogether.
template <class Step>
KVLOOM_HD int64_t cost_of_groups(const Step& s, uint64_t sum) {
  const plan::RunCost &full = s.args.one_tile_cost[0], &last = s.args.one_tile_cost[1];
  const int64_t more = s.runs(0).runs - 1, groups = int64_t(sum & ((1u << kGroupBits) - 1));
  return (more * full.fixed + last.fixed) * groups + (more * full.token + last.token) * int64_t(sum >> kGroupBits);
}

template <class Block, class Step>
KVLOOM_HD plan::PlanVerdict make_one_tile_each(Block& block, Step& s, Totals& totals) {
  enum { kFault, kLongest, kShortest, kCount };
  const plan::DeviceArgs& a = s.args;
  const int32_t runs = s.runs(0).runs;
  uint32_t most[kCount] = {}, tokens[2] = {};  // of K and V: lower 16 bits, what is above
  const auto read = [&](int32_t i, OneTile& t) -> uint64_t {  // groups, keys
    int64_t next;
    Request& r = t.request = load_request(a, i, next);
    if (!is_sound(a, r, next)) {
      most[kFault] = max_of(most[kFault], uint32_t(kNone - i));
      r.q_len = 0;
      return 0;
    }
    tokens[0] += uint32_t(r.kv_len) & 0xffff;
    tokens[1] += uint32_t(r.kv_len) >> 16;
    if (r.q_len == 0) return 0;
    if (!a.q_pos0) r.q_pos0 = plan::default_q_pos0(r.kv_len, r.q_len);
    t.seen = seen_by(s, r);
    const int32_t keys = t.seen.end - t.seen.begin;
    most[kLongest] = max_of(most[kLongest], uint32_t(keys));
    most[kShortest] = max_of(most[kShortest], uint32_t(kNone - keys));
    return 1 | uint64_t(keys) << kGroupBits;
  };
  const auto groups_of = [](uint64_t sum) { return int32_t(sum & ((1u << kGroupBits) - 1)); };
  const auto write = [&](int32_t i, const OneTile& t, uint64_t before) {
    const Request& r = t.request;
    if (r.q_len == 0) return;
    const int32_t group = groups_of(before);
    s.tiles[group] = {group, 0, t.seen.begin, t.seen.end, cost_of_groups(s, before), group * runs, uint16_t(int32_t(r.q_len) * a.group_size), 0};
    s.groups[group].token_begin = int32_t(r.begin);
    s.groups[group].token_count = int32_t(r.q_len);
    if (block.writes(i)) put_group(block, s, r, group);
  };
  const uint64_t sum = block.template scan_most<OneTile>(a.num_requests * a.request_lists, most, tokens, read, write);
  totals.cost = cost_of_groups(s, sum);
  totals.groups = totals.tiles = groups_of(sum);
  totals.units = totals.class_units[0] = totals.groups * runs;
  totals.max_rows[0] = a.group_size;  // as far as rows cost
  if (totals.tiles > 0) {
    const plan::RunCost &full = a.one_tile_cost[0], &last = a.one_tile_cost[1];
    totals.max_unit_cost = full.fixed + full.token * int64_t(most[kLongest]);
    totals.min_unit_cost = last.fixed + last.token * int64_t(kNone - most[kShortest]);
  }
  return verdict_of(a, most[kFault], (int64_t(tokens[1]) << 16) + tokens[0]);
}

}  // namespace kvloom::device_plan
