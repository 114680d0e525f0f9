// Does every partial reach its rows once, in order, and is every output row written once?
#include "kvloom/plan/validate_checks.h"

#include <algorithm>
#include <tuple>
#include <vector>

namespace kvloom::plan {
namespace {

/// One block of scratch rows that an item writes: [heads][row_count].
struct Partial {
  int64_t row;     // first scratch row
  int64_t rows;    // row_count * heads
  int64_t merged;  // rows that merge units read so far
  int32_t item;
  int32_t kv_begin;
  int32_t last_unit;  // the last unit that read from it
};

/// Partials of all items, by scratch row, or a fault: too many to be read by the plan's entries, or overlapping.
std::string collect_partials(const Subject& s, std::vector<Partial>& partials) {
  const PlanHeader& h = s.header();
  int64_t total = 0;
  for (int64_t i = 0; i < s.plan.items.size; ++i) {
    const WorkItem& w = s.plan.items[i];
    if (w.partial_row < 0) continue;
    total += item_partials(h, w);
    if (total > h.num_entries) return fault("item {}: more partials ({}) than merge entries ({})", i, total, h.num_entries);
  }
  partials.reserve(total);
  for (int64_t i = 0; i < s.plan.items.size; ++i) {
    const WorkItem& w = s.plan.items[i];
    if (w.partial_row < 0) continue;
    const int64_t rows = int64_t(w.row_count) * w.kv_head_count, count = item_partials(h, w);
    for (int64_t c = 0; c < count; ++c) {
      const int64_t kv_begin = c == 0 ? w.kv_begin : (w.kv_begin / h.split_tokens + c) * h.split_tokens;
      partials.push_back({w.partial_row + c * rows, rows, 0, int32_t(i), int32_t(kv_begin), -1});
    }
  }
  std::sort(partials.begin(), partials.end(), [](const Partial& a, const Partial& b) { return a.row < b.row; });
  for (size_t i = 1; i < partials.size(); ++i) {
    const Partial &a = partials[i - 1], &b = partials[i];
    if (a.row + a.rows > b.row) return fault("item {}: scratch rows from {} overlap those of item {}", b.item, b.row, a.item);
  }
  return {};
}

/// Do packed rows [row, row + count) of a group lie at consecutive output rows from `output`?
bool rows_match(const Subject& s, const RowGroup& g, int64_t row, int64_t count, int64_t output) {
  const int64_t n = s.group_size;
  if (g.row_list < 0) return g.token_begin * n + row == output;
  for (int64_t i = 0; i < count; i += n - (row + i) % n) {  // a step a token
    const RowEntry r = row_of(s.plan, g, int32_t((row + i) / n));
    if (r.token * n + (row + i) % n != output + i) return false;
  }
  return true;
}

std::string check_unit_bounds(const Subject& s, int64_t i, const MergeUnit& u) {
  const int64_t rows = int64_t(s.header().total_tokens) * s.group_size;
  if (u.row_begin < 0 || u.row_count < 1 || int64_t(u.row_begin) + u.row_count > rows) {
    return fault("unit {}: packed rows {} + {}: the step has {}", i, u.row_begin, u.row_count, rows);
  }
  if (u.kv_head < 0 || u.kv_head_count < 1 || int64_t(u.kv_head) + u.kv_head_count > s.kv_heads) {
    return fault("unit {}: KV heads {} + {}: the spec has {}", i, u.kv_head, u.kv_head_count, s.kv_heads);
  }
  if (u.entry_begin < 0 || u.entry_count < 1 || int64_t(u.entry_begin) + u.entry_count > s.header().num_entries) {
    return fault("unit {}: entries {} + {}: the plan has {}", i, u.entry_begin, u.entry_count, s.header().num_entries);
  }
  return {};
}

/// Finds the partial that an entry of unit `u` reads, and shows that it holds the unit's rows and heads.
std::string match_entry(const Subject& s, int64_t unit, const MergeUnit& u, const MergeEntry& e, std::vector<Partial>& partials,
                        Partial*& found) {
  auto it =
      std::upper_bound(partials.begin(), partials.end(), int64_t(e.partial_row), [](int64_t row, const Partial& p) { return row < p.row; });
  if (it == partials.begin() || e.partial_row >= (it - 1)->row + (it - 1)->rows) {
    return fault("unit {}: scratch row {}: no item writes it", unit, e.partial_row);
  }
  found = &*(it - 1);
  const WorkItem& w = s.plan.items[found->item];
  const int64_t offset = e.partial_row - found->row, row = offset % w.row_count, head = w.kv_head + offset / w.row_count;
  if (head != u.kv_head || u.kv_head + u.kv_head_count > w.kv_head + w.kv_head_count || row + u.row_count > w.row_count) {
    return fault("unit {}: scratch row {} is head {}, row {} of item {}: wanted head {}, and {} heads of {} rows from there", unit,
                 e.partial_row, head, row, found->item, u.kv_head, u.kv_head_count, u.row_count);
  }
  if (e.head_stride != w.row_count) {
    return fault("unit {}: head_stride: got {}, wanted {} (row_count of item {})", unit, e.head_stride, w.row_count, found->item);
  }
  if (!rows_match(s, s.plan.groups[w.group], w.row_begin + row, u.row_count, u.row_begin)) {
    return fault("unit {}: packed rows from {} are not those of item {} from its row {}", unit, u.row_begin, found->item, row);
  }
  return {};
}

/// Entries of a unit: matched, ascending in (level, kv begin), none twice. Appends (item, unit) to `reads`, once an arrival.
std::string check_unit(const Subject& s, int64_t unit, std::vector<Partial>& partials, std::vector<std::pair<int32_t, int32_t>>& reads) {
  const MergeUnit& u = s.plan.units[unit];
  if (std::string e = check_unit_bounds(s, unit, u); !e.empty()) return e;
  std::tuple<int32_t, int32_t> last{-1, -1};
  const size_t first_read = reads.size();
  for (int32_t k = 0; k < u.entry_count; ++k) {
    Partial* p = nullptr;
    if (std::string e = match_entry(s, unit, u, s.plan.entries[u.entry_begin + k], partials, p); !e.empty()) return e;
    const std::tuple<int32_t, int32_t> order{s.plan.groups[s.plan.items[p->item].group].level, p->kv_begin};
    if (order < last) return fault("unit {}: entry {} (item {}): out of order, wanted ascending (level, kv begin)", unit, k, p->item);
    if (p->last_unit == unit) return fault("unit {}: entry {}: item {} is merged twice", unit, k, p->item);
    last = order;
    p->last_unit = int32_t(unit);
    p->merged += int64_t(u.row_count) * u.kv_head_count;
    reads.emplace_back(p->item, int32_t(unit));
  }
  std::sort(reads.begin() + int64_t(first_read), reads.end());  // an item of several chunks arrives once
  reads.erase(std::unique(reads.begin() + int64_t(first_read), reads.end()), reads.end());
  if (u.arrivals != int64_t(reads.size() - first_read)) {
    return fault("unit {}: arrivals: got {}, wanted {} (items that it reads)", unit, u.arrivals, reads.size() - first_read);
  }
  return {};
}

/// An item arrives once at every unit that reads it.
std::string check_touches(const Subject& s, std::vector<std::pair<int32_t, int32_t>>& reads) {
  std::vector<std::pair<int32_t, int32_t>> arrivals;
  for (int64_t i = 0; i < s.plan.items.size; ++i) {
    const WorkItem& w = s.plan.items[i];
    if (w.partial_row < 0 && w.touch_count > 0) return fault("item {}: writes no partial, but touches {} units", i, w.touch_count);
    for (int32_t k = 0; k < w.touch_count; ++k) {
      const int32_t unit = s.plan.touches[w.touch_begin + k];
      if (unit < 0 || unit >= s.header().num_units)
        return fault("item {}: touches unit {}: the plan has {}", i, unit, s.header().num_units);
      arrivals.emplace_back(int32_t(i), unit);
      if (arrivals.size() > reads.size()) return fault("item {}: more touches than items that units read ({})", i, reads.size());
    }
  }
  std::sort(reads.begin(), reads.end());
  std::sort(arrivals.begin(), arrivals.end());
  if (reads == arrivals) return {};
  size_t i = 0;
  while (i < arrivals.size() && reads[i] == arrivals[i]) ++i;
  if (i < arrivals.size() && arrivals[i] < reads[i]) {
    return fault("item {}: touches unit {}, which does not read it", arrivals[i].first, arrivals[i].second);
  }
  return fault("item {}: does not touch unit {}, which reads it", reads[i].first, reads[i].second);
}

/// Rows [begin, end) of one KV head, written by a unit or a direct item.
struct Output {
  int32_t head;
  int64_t begin, end;
  bool by_unit;
  int32_t writer;
};

/// Output rows of a direct item, in runs of neighbouring tokens.
void add_direct(const Subject& s, int32_t item, std::vector<Output>& outputs) {
  const WorkItem& w = s.plan.items[item];
  const RowGroup& g = s.plan.groups[w.group];
  const int64_t n = s.group_size, row_end = int64_t(w.row_begin) + w.row_count;
  for (int32_t h = w.kv_head; h < w.kv_head + w.kv_head_count; ++h) {
    if (g.row_list < 0) {
      outputs.push_back({h, g.token_begin * n + w.row_begin, g.token_begin * n + row_end, false, item});
      continue;
    }
    const size_t first = outputs.size();
    for (int64_t row = w.row_begin; row < row_end;) {
      const int64_t end = min_of(row_end, (row / n + 1) * n);
      const int64_t begin = row_of(s.plan, g, int32_t(row / n)).token * n + row % n;
      if (outputs.size() > first && outputs.back().end == begin) {
        outputs.back().end += end - row;
      } else {
        outputs.push_back({h, begin, begin + (end - row), false, item});
      }
      row = end;
    }
  }
}

}  // namespace

std::string check_merges(const Subject& s) {
  std::vector<Partial> partials;
  if (std::string e = collect_partials(s, partials); !e.empty()) return e;
  std::vector<std::pair<int32_t, int32_t>> reads;
  for (int64_t u = 0; u < s.plan.units.size; ++u) {
    if (std::string e = check_unit(s, u, partials, reads); !e.empty()) return e;
    if (int64_t(reads.size()) > s.header().num_entries) return fault("unit {}: shares its entries with another unit", u);
  }
  for (const Partial& p : partials) {
    if (p.merged != p.rows)
      return fault("item {}: {} of its {} partial rows at keys from {} are merged", p.item, p.merged, p.rows, p.kv_begin);
  }
  return check_touches(s, reads);
}

std::string check_outputs(const Subject& s) {
  std::vector<Output> outputs;
  for (int32_t u = 0; u < s.header().num_units; ++u) {
    const MergeUnit& m = s.plan.units[u];
    for (int32_t h = m.kv_head; h < m.kv_head + m.kv_head_count; ++h) {
      outputs.push_back({h, m.row_begin, int64_t(m.row_begin) + m.row_count, true, u});
    }
  }
  for (int32_t i = 0; i < s.header().num_items; ++i) {
    if (s.plan.items[i].partial_row < 0) add_direct(s, i, outputs);
  }
  std::sort(outputs.begin(), outputs.end(), [](const Output& a, const Output& b) {
    return std::tie(a.head, a.begin, a.end, a.by_unit, a.writer) < std::tie(b.head, b.begin, b.end, b.by_unit, b.writer);
  });
  const int64_t rows = int64_t(s.header().total_tokens) * s.group_size;
  const Output* o = outputs.data();
  const Output* const end = o + outputs.size();
  for (int32_t head = 0; rows > 0 && head < s.kv_heads; ++head) {
    int64_t next = 0;
    for (; o != end && o->head == head; ++o) {
      const char* writer = o->by_unit ? "unit" : "item";
      if (o->begin < next) return fault("{} {}: packed rows [{}, {}), head {}: written twice", writer, o->writer, o->begin, o->end, head);
      if (o->begin > next) return fault("packed rows [{}, {}), head {}: in no item, never written", next, o->begin, head);
      next = o->end;
    }
    if (next != rows) return fault("packed rows [{}, {}), head {}: in no item, never written", next, rows, head);
  }
  return {};
}

}  // namespace kvloom::plan
