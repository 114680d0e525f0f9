#include "kvloom/plan/describe.h"

#include "kvloom/plan/cost.h"
#include "kvloom/plan/describe_facts.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace kvloom::plan {
namespace {

/// Items of one tile: same rows, same heads.
using TileKey = std::tuple<int32_t, int32_t, uint16_t>;
TileKey tile_key(const WorkItem& w) { return {w.group, w.row_begin, w.kv_head}; }

void mark_cuts(const PlanView& plan, PlanFacts& facts) {
  std::map<TileKey, std::pair<int32_t, int32_t>> range;
  for (const WorkItem& w : plan.items) {
    const auto [it, fresh] = range.try_emplace(tile_key(w), w.kv_begin, w.kv_end);
    it->second.first = std::min(it->second.first, w.kv_begin);
    it->second.second = std::max(it->second.second, w.kv_end);
  }
  for (int64_t i = 0; i < plan.items.size; ++i) {
    const auto& [begin, end] = range.at(tile_key(plan.items[i]));
    facts.items[i].cut_before = plan.items[i].kv_begin > begin;
    facts.items[i].cut_after = plan.items[i].kv_end < end;
  }
}

void match_entries(const PlanView& plan, PlanFacts& facts) {
  std::vector<std::pair<int32_t, int32_t>> partials;  // (first scratch row, item)
  for (int64_t i = 0; i < plan.items.size; ++i) {
    if (plan.items[i].partial_row >= 0) partials.emplace_back(plan.items[i].partial_row, int32_t(i));
  }
  std::sort(partials.begin(), partials.end());
  facts.entry_item.assign(size_t(plan.entries.size), -1);
  for (int64_t e = 0; e < plan.entries.size; ++e) {
    const auto after = std::upper_bound(partials.begin(), partials.end(), std::pair{plan.entries[e].partial_row, INT32_MAX});
    if (after != partials.begin()) facts.entry_item[e] = (after - 1)->second;
  }
  for (const MergeUnit& u : plan.units) {
    const int32_t item = facts.entry_item[u.entry_begin + u.entry_count - 1];
    if (item >= 0) ++facts.items[item].merges;
  }
}

void sum_up_ctas(const PlanView& plan, PlanFacts& facts) {
  facts.ctas.resize(size_t(plan.header->num_ctas));
  for (int32_t c = 0; c < plan.header->num_ctas; ++c) {
    CtaFacts& cta = facts.ctas[c];
    for (int32_t i = plan.cta_indptr[c]; i < plan.cta_indptr[c + 1]; ++i) {
      const ItemFacts& item = facts.items[i];
      cta.load += item.cost;
      ++cta.items;
      cta.cut += item.cut_before || item.cut_after;
      cta.shared += item.shared;
      cta.merges += item.merges;
      if (std::find(cta.requests.begin(), cta.requests.end(), item.request) == cta.requests.end()) cta.requests.push_back(item.request);
    }
    facts.total_load += cta.load;
    facts.largest_load = std::max(facts.largest_load, cta.load);
    facts.smallest_load = c == 0 ? cta.load : std::min(facts.smallest_load, cta.load);
  }
}

}  // namespace

PlanFacts facts_of(const PlanView& plan, const AttentionSpec& spec) {
  PlanFacts facts;
  const int32_t group_size = std::max<int32_t>(1, spec.group_size());
  facts.items.resize(size_t(plan.items.size));
  for (int64_t i = 0; i < plan.items.size; ++i) {
    const WorkItem& w = plan.items[i];
    const RowGroup& g = plan.groups[w.group];
    facts.items[i].cost = item_cost(plan, w);
    facts.items[i].request = row_of(plan, g, w.row_begin / group_size).request;
    facts.items[i].shared = g.level < plan.header->num_levels - 1;
  }
  mark_cuts(plan, facts);
  match_entries(plan, facts);
  sum_up_ctas(plan, facts);
  std::set<int32_t> requests;
  for (const RowGroup& g : plan.groups) {
    for (int32_t i = 0; i < g.token_count; ++i) requests.insert(row_of(plan, g, i).request);
  }
  facts.num_requests = int32_t(requests.size());
  return facts;
}

uint64_t item_cost(const PlanView& plan, const WorkItem& item) { return work_cost(*plan.header, item); }

std::string grouped(uint64_t n) {
  std::string s = std::to_string(n);
  for (int64_t i = int64_t(s.size()) - 3; i > 0; i -= 3) s.insert(size_t(i), 1, ',');
  return s;
}

std::string ratio(uint64_t a, uint64_t b) {
  if (b == 0) return "1.000";
  uint64_t whole = a / b;
  // The remainder is below b: in thousandths without overflow for any b below 2^54, as costs are.
  uint64_t thousandths = ((a % b) * 1000 + b / 2) / b;
  whole += thousandths / 1000;
  thousandths %= 1000;
  return format("{}.{:03}", whole, thousandths);
}

std::string counted(uint64_t n, const char* noun) { return format("{} {}{}", grouped(n), noun, n == 1 ? "" : "s"); }

}  // namespace kvloom::plan
