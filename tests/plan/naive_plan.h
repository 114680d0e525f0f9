// The plainest way to make a sound plan from row groups, in code that shares nothing with the planner: tiles in order, equal chunks, CTAs
// dealt in turn. Tests of what reads plans (validate, describe, levels) start from its plans and then break them.
#pragma once

#include "kvloom/attn/tile_range.h"
#include "kvloom/contract/plan_format.h"
#include "kvloom/contract/spec.h"
#include "kvloom/plan/cost.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>
#include <vector>

namespace kvloom::test {

struct NaiveOptions {
  int32_t tile_rows = 16;
  int32_t tile_kv = 16;
  int32_t chunk = 64;        // keys an item; a multiple of tile_kv
  int32_t split_tokens = 0;  // > 0: a fixed_split plan; `chunk` is a multiple of it
  int32_t heads_per_item = 1;
  int32_t ctas = 4;
};

/// Sections of a plan as vectors, and the buffer that they make.
struct PlanParts {
  PlanHeader header{};
  std::vector<RowGroup> groups;
  std::vector<RowEntry> row_entries;
  std::vector<int32_t> cta_indptr;
  std::vector<WorkItem> items;
  std::vector<MergeUnit> units;
  std::vector<MergeEntry> entries;
  std::vector<int32_t> touches;

  /// Lays the sections out one after the other; counts and offsets of the header follow the vectors.
  std::vector<uint64_t> buffer() {
    int64_t end = (sizeof(PlanHeader) + 63) / 64 * 64;
    auto place = [&](int64_t bytes) {
      const int64_t at = end;
      end = (end + bytes + 63) / 64 * 64;
      return at;
    };
    header.num_groups = int32_t(groups.size());
    header.num_row_entries = int32_t(row_entries.size());
    header.num_ctas = int32_t(cta_indptr.size()) - 1;
    header.num_items = int32_t(items.size());
    header.num_units = int32_t(units.size());
    header.num_entries = int32_t(entries.size());
    header.num_touches = int32_t(touches.size());
    header.groups_offset = place(groups.size() * sizeof(RowGroup));
    header.row_entries_offset = place(row_entries.size() * sizeof(RowEntry));
    header.cta_indptr_offset = place(cta_indptr.size() * sizeof(int32_t));
    header.items_offset = place(items.size() * sizeof(WorkItem));
    header.units_offset = place(units.size() * sizeof(MergeUnit));
    header.entries_offset = place(entries.size() * sizeof(MergeEntry));
    header.touches_offset = place(touches.size() * sizeof(int32_t));
    header.total_bytes = end;
    std::vector<uint64_t> words(end / 8, 0);
    char* base = reinterpret_cast<char*>(words.data());
    auto put = [&](int64_t at, const auto& v) {
      if (!v.empty()) std::memcpy(base + at, v.data(), v.size() * sizeof(v[0]));
    };
    std::memcpy(base, &header, sizeof(header));
    put(header.groups_offset, groups);
    put(header.row_entries_offset, row_entries);
    put(header.cta_indptr_offset, cta_indptr);
    put(header.items_offset, items);
    put(header.units_offset, units);
    put(header.entries_offset, entries);
    put(header.touches_offset, touches);
    return words;
  }
};

/// What one output row gets from one item: where it lies in scratch, and its place in the merge order.
struct Contribution {
  int32_t level, kv_begin, item, scratch_row;
  auto order() const { return std::tie(level, kv_begin, item); }
};

class NaivePlanner {
 public:
  NaivePlanner(const AttentionSpec& spec, const NaiveOptions& options) : spec_(spec), options_(options), n_(spec.group_size()) {}

  PlanParts plan(std::vector<RowGroup> groups, std::vector<RowEntry> row_entries, int32_t num_levels, int32_t total_tokens) {
    parts_ = {};
    rows_.clear();
    parts_.groups = std::move(groups);
    parts_.row_entries = std::move(row_entries);
    PlanHeader& h = parts_.header;
    h.magic = kPlanMagic;
    h.version = kPlanVersion;
    h.policy = options_.split_tokens > 0 ? Policy::fixed_split : Policy::none;
    h.split_tokens = options_.split_tokens;
    h.num_levels = num_levels;
    h.total_tokens = total_tokens;
    for (KernelClass& c : h.classes) c = {options_.tile_rows, options_.tile_kv, options_.heads_per_item, 10, 0, 300};
    for (size_t g = 0; g < parts_.groups.size(); ++g) cut_group(int32_t(g));
    make_units();
    deal();
    return std::move(parts_);
  }

 private:
  RowEntry row(const RowGroup& g, int32_t i) const {
    if (g.row_list >= 0) return parts_.row_entries[g.row_list + i];
    return {g.token_begin + i, g.request, g.q_index0 + i, g.q_pos0 + i, g.prefix};
  }

  void cut_group(int32_t index) {
    const RowGroup g = parts_.groups[index];
    const int32_t head_end = g.kv_head >= 0 ? g.kv_head + 1 : spec_.num_kv_heads;
    for (int32_t head = g.kv_head >= 0 ? g.kv_head : 0; head < head_end; head += options_.heads_per_item) {
      const int32_t heads = std::min(options_.heads_per_item, head_end - head);
      for (int32_t r = 0; r < g.token_count * n_; r += options_.tile_rows) {
        cut_tile(index, r, std::min(options_.tile_rows, g.token_count * n_ - r), head, heads);
      }
    }
  }

  void cut_tile(int32_t index, int32_t row_begin, int32_t row_count, int32_t head, int32_t heads) {
    const RowGroup g = parts_.groups[index];
    const RowEntry first = row(g, row_begin / n_);
    int32_t low = first.q_pos, high = low, prefix = first.prefix;
    for (int32_t p = row_begin; p < row_begin + row_count; ++p) {
      const RowEntry r = row(g, p / n_);
      low = std::min(low, r.q_pos), high = std::max(high, r.q_pos), prefix = std::max(prefix, r.prefix);
    }
    const TokenRange t = visible_tokens(g, spec_.variant.range, low, high, prefix);
    int32_t begin = t.begin;
    do {
      const int32_t end = std::min(t.end, (begin / options_.chunk + 1) * options_.chunk);
      add_item({index, row_begin, begin, end, 0, 0, uint16_t(row_count), 0, uint16_t(head), uint8_t(heads), 0,
                uint8_t(options_.split_tokens > 0 && begin > t.begin)});
      begin = end;
    } while (begin < t.end);
  }

  void add_item(WorkItem w) {
    const RowGroup g = parts_.groups[w.group];
    int32_t kv_begin = w.kv_begin;
    w.partial_row = parts_.header.scratch_rows;
    for (int32_t c = 0; c < item_partials(parts_.header, w); ++c) {
      for (int32_t h = 0; h < w.kv_head_count; ++h) {
        for (int32_t p = 0; p < w.row_count; ++p) {
          const int32_t output = row(g, (w.row_begin + p) / n_).token * n_ + (w.row_begin + p) % n_;
          rows_[{w.kv_head + h, output}].push_back({g.level, kv_begin, int32_t(parts_.items.size()), parts_.header.scratch_rows++});
        }
      }
      if (w.chunked) kv_begin = (kv_begin / options_.split_tokens + 1) * options_.split_tokens;
    }
    parts_.items.push_back(w);
  }

  /// Rows whose contributions all stand one scratch row further than those of the row before join its unit. Items all of whose rows have no
  /// other contribution write the output directly.
  void make_units() {
    std::vector<bool> alone(parts_.items.size(), true);
    for (auto& [where, list] : rows_) {
      std::sort(list.begin(), list.end(), [](const Contribution& a, const Contribution& b) { return a.order() < b.order(); });
      for (const Contribution& c : list) alone[c.item] = alone[c.item] && list.size() == 1;
    }
    const std::vector<Contribution>* last = nullptr;
    std::vector<std::vector<int32_t>> touches(parts_.items.size());
    for (auto& [where, list] : rows_) {
      const auto [head, output] = where;
      if (alone[list[0].item]) {
        last = nullptr;
        continue;
      }
      MergeUnit* u = parts_.units.empty() ? nullptr : &parts_.units.back();
      const bool joins = last && u->kv_head == head && u->row_begin + u->row_count == output && follows(*last, list);
      if (joins) {
        ++u->row_count;
      } else {
        const int32_t unit = int32_t(parts_.units.size());
        parts_.units.push_back({output, 1, head, 1, int32_t(parts_.entries.size()), int32_t(list.size()), 0});
        for (const Contribution& c : list) {
          parts_.entries.push_back({c.scratch_row, parts_.items[c.item].row_count});
          if (!touches[c.item].empty() && touches[c.item].back() == unit) continue;
          touches[c.item].push_back(unit);
          ++parts_.units[unit].arrivals;
        }
      }
      last = &list;
    }
    int32_t used = 0;
    for (size_t i = 0; i < touches.size(); ++i) {
      WorkItem& w = parts_.items[i];
      if (alone[i]) w.partial_row = -1;
      if (alone[i]) w.chunked = 0;
      if (!alone[i]) used = std::max(used, w.partial_row + w.row_count * w.kv_head_count * item_partials(parts_.header, w));
      w.touch_begin = int32_t(parts_.touches.size());
      w.touch_count = uint16_t(touches[i].size());
      parts_.touches.insert(parts_.touches.end(), touches[i].begin(), touches[i].end());
    }
    parts_.header.scratch_rows = used;
  }

  static bool follows(const std::vector<Contribution>& a, const std::vector<Contribution>& b) {
    if (a.size() != b.size()) return false;
    for (size_t i = 0; i < a.size(); ++i) {
      if (a[i].item != b[i].item || a[i].scratch_row + 1 != b[i].scratch_row) return false;
    }
    return true;
  }

  /// CTA c gets a run of neighbouring items.
  void deal() {
    const int64_t n = int64_t(parts_.items.size());
    for (int64_t c = 0; c <= options_.ctas; ++c) parts_.cta_indptr.push_back(int32_t(n * c / options_.ctas));
    PlanHeader& h = parts_.header;
    for (int32_t c = 0; c < options_.ctas; ++c) {
      uint64_t load = 0;
      for (int32_t i = parts_.cta_indptr[c]; i < parts_.cta_indptr[c + 1]; ++i) load += plan::work_cost(h, parts_.items[i]);
      h.cost_total += load;
      h.cost_max = std::max(h.cost_max, load);
    }
  }

  AttentionSpec spec_;
  NaiveOptions options_;
  int32_t n_;
  PlanParts parts_;
  std::map<std::pair<int32_t, int32_t>, std::vector<Contribution>> rows_;  // (KV head, packed row) -> who contributes
};

}  // namespace kvloom::test
