// Requests that are a tile of class 0 each (DeviceArgs::one_tile), as of decode steps: judged, and made groups and tiles, in one pass.
#pragma once

#include "kvloom/device/plan/requests.h"
#include "kvloom/device/plan/tiles.h"

namespace kvloom::device_plan {

inline constexpr int kGroupBits = 20;  // of Sum::counts; the tokens of K and V lie above
static_assert(plan::kMaxOneTile <= 1 << kGroupBits && int64_t(plan::kMaxOneTile) * plan::kMaxListTokens <= int64_t(1) << (64 - kGroupBits));

struct OneTile {
  Request request;
  int32_t kv_begin, kv_end;
};

/// The keys that the rows of a request see.
template <class Step>
KVLOOM_HD TokenRange seen_by(const Step& s, const Request& r) {
  RowGroup keys{};
  keys.kv_end = int32_t(r.kv_len);
  keys.kv_position = s.args.kv_position;
  return visible_tokens(keys, s.args.range, r.q_pos0, r.q_pos0 + int32_t(r.q_len) - 1, r.prefix);
}

template <class Block, class Step>
KVLOOM_HD plan::PlanVerdict make_one_tile_each(Block& block, Step& s, Totals& totals) {
  enum { kFault, kDearest, kCheapest, kRows, kCount };
  const plan::DeviceArgs& a = s.args;
  const plan::HeadRuns& runs = s.runs(0);
  uint64_t most[kCount] = {};
  const auto read = [&](int32_t i, OneTile& t) -> Sum {  // groups and tokens of K and V, cost
    int64_t next;
    Request& r = t.request = load_request(a, i, next);
    if (!is_sound(a, r, next)) {
      most[kFault] = max_of(most[kFault], uint64_t(kNone - i));
      r.q_len = 0;
      return {};
    }
    if (r.q_len == 0) return {uint64_t(r.kv_len) << kGroupBits, 0};
    if (!a.q_pos0) r.q_pos0 = plan::default_q_pos0(r.kv_len, r.q_len);
    const TokenRange seen = seen_by(s, r);
    t.kv_begin = seen.begin, t.kv_end = seen.end;
    const int32_t rows = int32_t(r.q_len) * a.group_size, tokens = seen.end - seen.begin;
    const int64_t full = plan::run_cost_of(s.kernel_class(0), rows, tokens, runs.heads).unit;
    const int64_t last = plan::run_cost_of(s.kernel_class(0), rows, tokens, runs.last_heads).unit;
    const int64_t first = runs.runs > 1 ? full : last;
    most[kDearest] = max_of(most[kDearest], uint64_t(first));
    most[kCheapest] = max_of(most[kCheapest], uint64_t(kNever - last));
    most[kRows] = max_of(most[kRows], uint64_t(rows));
    return {1 | uint64_t(r.kv_len) << kGroupBits, (runs.runs - 1) * full + last};
  };
  const auto groups_of = [](const Sum& sum) { return int32_t(sum.counts & ((1u << kGroupBits) - 1)); };
  const auto write = [&](int32_t i, const OneTile& t, const Sum& before) {
    const Request& r = t.request;
    if (r.q_len == 0) return;
    const int32_t group = groups_of(before);
    s.tiles[group] = {group, 0, t.kv_begin, t.kv_end, before.number, group * runs.runs, uint16_t(int32_t(r.q_len) * a.group_size), 0};
    s.groups[group].token_begin = int32_t(r.begin);
    s.groups[group].token_count = int32_t(r.q_len);
    if (block.writes(i)) put_group(block, s, r, group);
  };
  const Sum sum = block.template scan_most<OneTile>(a.num_requests * a.request_lists, most, read, write);
  totals.cost = sum.number;
  totals.groups = totals.tiles = groups_of(sum);
  totals.units = totals.class_units[0] = totals.groups * runs.runs;
  totals.max_rows[0] = int32_t(most[kRows]);
  totals.max_unit_cost = int64_t(most[kDearest]);
  totals.min_unit_cost = kNever - int64_t(most[kCheapest]);
  return verdict_of(a, most[kFault], int64_t(sum.counts >> kGroupBits));
}

}  // namespace kvloom::device_plan
