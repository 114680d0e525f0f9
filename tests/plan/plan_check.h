// An independent reading of a plan, for small batches: executes it on sets of keys instead of numbers. Every item writes the key range
// that it was given to its rows, every unit concatenates its entries, and in the end each output row must hold, once, exactly the keys
// that attn/mask.h keeps for it, in merge order.
#pragma once

#include "kvloom/attn/mask.h"
#include "kvloom/contract/plan_format.h"
#include "kvloom/contract/spec.h"
#include "kvloom/plan/planner.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace kvloom::test {

/// Keys [begin, end) of a group's list.
struct Segment {
  int32_t group;
  int32_t begin;
  int32_t end;
};

/// Memory for a plan: exactly the bytes the layout names, so that a sanitizer sees a write past them.
struct PlanBuffer {
  explicit PlanBuffer(int64_t n) : bytes(n), data(std::aligned_alloc(64, size_t((n + 63) / 64 * 64))) {}
  ~PlanBuffer() { std::free(data); }
  PlanBuffer(const PlanBuffer&) = delete;
  int64_t bytes;
  void* data;
};

class PlanExecutor {
 public:
  PlanExecutor(const PlanView& plan, const AttentionSpec& spec) : p_(plan), spec_(spec), g_(spec.group_size()) {}

  /// "" or the first fault.
  std::string check() {
    for (auto step : {&PlanExecutor::check_counts, &PlanExecutor::run_items, &PlanExecutor::run_units, &PlanExecutor::check_rows}) {
      const std::string fault = (this->*step)();
      if (!fault.empty()) return fault;
    }
    return "";
  }

  /// Output of (global packed row, KV head): segments in merge order, chunk by chunk under fixed_split.
  const std::vector<Segment>& output(int64_t row, int32_t head) { return outputs_[{row, head}]; }

 private:
  struct Partial {
    int64_t row;
    int32_t head;
    int32_t item;
    std::vector<Segment> segments;
  };

  std::string check_counts() {
    const PlanHeader& h = *p_.header;
    if (h.magic != kPlanMagic || h.version != kPlanVersion) return "magic or version";
    if (p_.cta_indptr[0] != 0 || p_.cta_indptr[h.num_ctas] != h.num_items) return "cta_indptr does not span the items";
    for (int32_t c = 0; c < h.num_ctas; ++c) {
      if (p_.cta_indptr[c + 1] < p_.cta_indptr[c]) return fmt::format("cta_indptr decreases at {}", c);
    }
    uint64_t total = 0, largest = 0;
    for (int32_t c = 0; c < h.num_ctas; ++c) {
      uint64_t load = 0;
      for (int32_t i = p_.cta_indptr[c]; i < p_.cta_indptr[c + 1]; ++i) load += cost(p_.items[i]);
      total += load;
      largest = std::max(largest, load);
    }
    if (total != h.cost_total || largest != h.cost_max)
      return fmt::format("costs: header {} {}, items {} {}", h.cost_total, h.cost_max, total, largest);
    return "";
  }

  uint64_t cost(const WorkItem& i) const {
    const KernelClass& k = p_.header->classes[i.kernel_class];
    return uint64_t(k.cost_per_item) +
           i.kv_head_count * (uint64_t(k.cost_per_tile_row) * i.row_count + uint64_t(k.cost_per_token) * uint64_t(i.kv_end - i.kv_begin));
  }

  /// A key range in the pieces that one fold step takes.
  std::vector<Segment> folds(const WorkItem& item) const {
    const int32_t s = p_.header->split_tokens;
    std::vector<Segment> v;
    if (s == 0 || item.kv_end == item.kv_begin) return {{item.group, item.kv_begin, item.kv_end}};
    for (int64_t b = item.kv_begin; b < item.kv_end;) {
      const int64_t e = std::min<int64_t>(item.kv_end, (b / s + 1) * s);
      v.push_back({item.group, int32_t(b), int32_t(e)});
      b = e;
    }
    return v;
  }

  std::string run_items() {
    for (int32_t i = 0; i < p_.header->num_items; ++i) {
      const WorkItem& item = p_.items[i];
      const std::string name = fmt::format("item {} (group {} rows {}+{} heads {}+{} keys {}..{})", i, item.group, item.row_begin,
                                           item.row_count, item.kv_head, item.kv_head_count, item.kv_begin, item.kv_end);
      if (item.group < 0 || item.group >= p_.header->num_groups) return name + ": group";
      const RowGroup& g = p_.groups[item.group];
      const KernelClass& k = p_.header->classes[item.kernel_class];
      if (item.row_count == 0 || item.row_count > k.tile_rows) return name + ": row count";
      if (item.row_begin < 0 || item.row_begin + item.row_count > g.token_count * g_) return name + ": rows outside the group";
      if (item.kv_head_count == 0 || item.kv_head + item.kv_head_count > spec_.num_kv_heads) return name + ": heads";
      if (g.kv_head >= 0 && (item.kv_head != g.kv_head || item.kv_head_count != 1)) return name + ": head of the group";
      if (item.kv_begin < g.kv_begin || (item.kv_end > g.kv_end && item.kv_end > item.kv_begin) || item.kv_end < item.kv_begin)
        return name + ": keys";
      const std::vector<Segment> all = folds(item);
      if (item.chunked && int32_t(all.size()) != item_partials(*p_.header, item)) return name + ": item_partials";
      for (int32_t h = 0; h < item.kv_head_count; ++h) {
        for (int32_t r = 0; r < item.row_count; ++r) {
          const int32_t packed = item.row_begin + r;
          const int64_t row = int64_t(row_of(p_, g, packed / g_).token) * g_ + packed % g_;
          const int32_t head = item.kv_head + h;
          if (item.partial_row < 0) {
            if (item.touch_count != 0) return name + ": final and touches units";
            if (!outputs_.emplace(std::pair{row, head}, all).second) return name + fmt::format(": row {} head {} written twice", row, head);
            continue;
          }
          const int32_t parts = item.chunked ? int32_t(all.size()) : 1;
          for (int32_t c = 0; c < parts; ++c) {
            const int32_t at = item.partial_row + c * item.row_count * item.kv_head_count + h * item.row_count + r;
            if (at < 0 || at >= p_.header->scratch_rows) return name + ": scratch row";
            Partial partial{row, head, i, item.chunked ? std::vector<Segment>{all[c]} : all};
            if (!scratch_.emplace(at, partial).second) return name + fmt::format(": scratch row {} written twice", at);
          }
        }
      }
    }
    return "";
  }

  std::string run_units() {
    std::vector<std::set<int32_t>> touched(p_.header->num_units);
    int64_t touches = 0;
    for (int32_t i = 0; i < p_.header->num_items; ++i) {
      const WorkItem& item = p_.items[i];
      if (item.partial_row >= 0 && item.touch_count == 0) return fmt::format("item {}: partial, but touches nothing", i);
      for (int32_t t = item.touch_begin; t < item.touch_begin + item.touch_count; ++t) {
        if (t < 0 || t >= p_.header->num_touches) return fmt::format("item {}: touches", i);
        const int32_t u = p_.touches[t];
        if (u < 0 || u >= p_.header->num_units) return fmt::format("item {}: touched unit", i);
        if (!touched[u].insert(i).second) return fmt::format("item {}: touches unit {} twice", i, u);
        ++touches;
      }
    }
    if (touches != p_.header->num_touches) return "touches overlap";
    std::set<int32_t> read;
    for (int32_t u = 0; u < p_.header->num_units; ++u) {
      const MergeUnit& unit = p_.units[u];
      const std::string name =
          fmt::format("unit {} (rows {}+{} heads {}+{})", u, unit.row_begin, unit.row_count, unit.kv_head, unit.kv_head_count);
      if (unit.entry_begin < 0 || unit.entry_count < 1 || unit.entry_begin + unit.entry_count > p_.header->num_entries)
        return name + ": entries";
      if (unit.arrivals != int32_t(touched[u].size()))
        return name + fmt::format(": {} arrivals, {} items touch it", unit.arrivals, touched[u].size());
      for (int32_t h = 0; h < unit.kv_head_count; ++h) {
        for (int32_t r = 0; r < unit.row_count; ++r) {
          std::vector<Segment> all;
          std::set<int32_t> items;
          for (int32_t e = unit.entry_begin; e < unit.entry_begin + unit.entry_count; ++e) {
            const int32_t at = p_.entries[e].partial_row + h * p_.entries[e].head_stride + r;
            const auto found = scratch_.find(at);
            if (found == scratch_.end()) return name + fmt::format(": entry {} reads scratch row {}, which nobody writes", e, at);
            const Partial& partial = found->second;
            if (partial.row != unit.row_begin + r || partial.head != unit.kv_head + h)
              return name + fmt::format(": entry {} is of another row", e);
            if (!read.insert(at).second) return name + fmt::format(": scratch row {} merged twice", at);
            items.insert(partial.item);
            all.insert(all.end(), partial.segments.begin(), partial.segments.end());
          }
          if (items != touched[u]) return name + ": items of its entries and items that touch it differ";
          if (!outputs_.emplace(std::pair{int64_t(unit.row_begin) + r, unit.kv_head + h}, all).second) return name + ": row written twice";
        }
      }
    }
    if (read.size() != scratch_.size()) return "a partial is never merged";
    return "";
  }

  std::string check_rows() {
    // Groups of each token.
    std::map<int32_t, std::vector<std::pair<int32_t, RowEntry>>> groups;
    for (int32_t g = 0; g < p_.header->num_groups; ++g) {
      for (int32_t i = 0; i < p_.groups[g].token_count; ++i) {
        const RowEntry e = row_of(p_, p_.groups[g], i);
        groups[e.token].push_back({g, e});
      }
    }
    if (int64_t(outputs_.size()) != int64_t(p_.header->total_tokens) * spec_.num_qo_heads) return "not every output row is written";
    for (const auto& [where, segments] : outputs_) {
      const auto [row, head] = where;
      const std::string name = fmt::format("row {} head {}", row, head);
      for (size_t s = 1; s < segments.size(); ++s) {
        const RowGroup& a = p_.groups[segments[s - 1].group];
        const RowGroup& b = p_.groups[segments[s].group];
        if (std::pair(a.level, segments[s - 1].begin) >= std::pair(b.level, segments[s].begin)) return name + ": merge order";
      }
      for (const auto& [index, e] : groups[int32_t(row / g_)]) {
        const RowGroup& g = p_.groups[index];
        if (g.kv_head >= 0 && g.kv_head != head) continue;
        std::vector<int32_t> times(size_t(std::max(0, g.kv_end - g.kv_begin)), 0);
        for (const Segment& s : segments) {
          for (int32_t k = s.begin; s.group == index && k < s.end; ++k) ++times[k - g.kv_begin];
        }
        for (int32_t k = g.kv_begin; k < g.kv_end; ++k) {
          const int32_t n = times[k - g.kv_begin];
          const bool keep = g.kv_position != KvPosition::linear || keeps(spec_.variant.range, e.prefix, e.q_pos, g.kv_pos0 + k);
          if (n > 1 || (keep && n != 1)) return name + fmt::format(": key {} of group {} taken {} times", k, index, n);
        }
      }
    }
    return "";
  }

  const PlanView p_;
  const AttentionSpec& spec_;
  const int32_t g_;
  std::map<int32_t, Partial> scratch_;
  std::map<std::pair<int64_t, int32_t>, std::vector<Segment>> outputs_;
};

}  // namespace kvloom::test
