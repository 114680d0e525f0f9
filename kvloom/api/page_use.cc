#include "kvloom/api/page_use.h"

#include "kvloom/attn/tile_range.h"
#include "kvloom/base/math.h"
#include "kvloom/cpu/index_scan.h"

#include <algorithm>

namespace kvloom::api {
namespace {

struct Positions {
  int32_t min, max, prefix;
  int32_t request;
};

/// Positions of a group's rows, and their largest prefix.
Positions positions_of(const PlanView& plan, const RowGroup& g) {
  if (g.row_list < 0) return {g.q_pos0, g.q_pos0 + g.token_count - 1, g.prefix, g.request};
  Positions p{INT32_MAX, INT32_MIN, 0, -1};
  for (int32_t i = 0; i < g.token_count; ++i) {
    const RowEntry& row = plan.row_entries[g.row_list + i];
    p.min = min_of(p.min, row.q_pos);
    p.max = max_of(p.max, row.q_pos);
    p.prefix = max_of(p.prefix, row.prefix);
    p.request = row.request;
  }
  return p;
}

/// Entries [begin, end) of the page table.
struct Entries {
  int64_t begin = 0, end = 0;
};

/// Looks for the largest id in the order in which groups name entries. What is consecutive (a plain page table is, as a whole) is scanned
/// in one go: a scan's beginning and end cost as much as hundreds of ids.
class PageScan {
 public:
  explicit PageScan(IndexView pages) : pages_(pages) {}

  void add(Entries e) {
    if (e.begin != open_.end) {
      scan();
      open_.begin = e.begin;
    }
    open_.end = e.end;
  }
  /// The largest id, -1 if there is none, and its first entry; the last call.
  int64_t finish(int64_t& entry) {
    scan();
    if (high_ >= 0) entry = pages_.is_64 ? first_of<int64_t>() : first_of<int32_t>();
    return high_;
  }
  bool negative() const { return negative_; }

 private:
  static constexpr int64_t kBlock = 2048;  // ids between two looks at the maximum: where it stands is then looked for in so many

  void scan() {
    for (int64_t begin = open_.begin; begin < open_.end; begin += kBlock) {
      const Entries block = {begin, min_of(begin + kBlock, open_.end)};
      const cpu::IndexScan found = cpu::scan_index(pages_, block.begin, block.end);
      negative_ |= found.negative;
      if (found.high <= high_) continue;
      high_ = found.high;
      largest_ = block;
    }
    open_ = {};
  }

  template <class T>
  int64_t first_of() const {
    const T* const ids = static_cast<const T*>(pages_.data);
    return std::find(ids + largest_.begin, ids + largest_.end, T(high_)) - ids;
  }

  IndexView pages_;
  Entries open_, largest_;
  int64_t high_ = -1;
  bool negative_ = false;
};

/// The entries of `pages` that rows of a group can see; none: begin == end.
Entries entries_of(const AttentionSpec& spec, const RowGroup& g, TokenRange seen) {
  if (seen.end <= seen.begin) return {};
  return {g.list_begin + seen.begin / spec.page_size, g.list_begin + (seen.end - 1) / spec.page_size + 1};
}

TokenRange seen_by(const AttentionSpec& spec, const PlanView& plan, const RowGroup& g, Positions& p) {
  if (g.token_count == 0) return {0, 0};
  p = positions_of(plan, g);
  return visible_tokens(g, spec.variant.range, p.min, p.max, p.prefix);
}

/// The smallest of all ids. They are read once more, but this batch is refused.
void find_smallest(const AttentionSpec& spec, const PlanView& plan, IndexView pages, PageUse& use) {
  Positions p;
  for (const RowGroup& g : plan.groups) {
    const Entries seen = entries_of(spec, g, seen_by(spec, plan, g, p));
    for (int64_t i = seen.begin; i < min_of(seen.end, pages.size); ++i) {
      if (pages[i] >= use.min_id) continue;
      use.min_id = pages[i];
      use.min_entry = i;
    }
  }
}

}  // namespace

PageUse find_page_use(const AttentionSpec& spec, const PlanView& plan, IndexView pages, bool read_ids) {
  PageUse use;
  Positions p;
  PageScan scan(pages);
  for (const RowGroup& g : plan.groups) {
    const TokenRange seen = seen_by(spec, plan, g, p);
    if (seen.end <= seen.begin) continue;
    if (spec.storage == Storage::ragged) {
      use.min_id = min_of(use.min_id, g.list_begin + seen.begin);
      use.max_id = max_of(use.max_id, g.list_begin + seen.end - 1);
      continue;
    }
    const Entries entries = entries_of(spec, g, seen);
    use.entries_end = max_of(use.entries_end, entries.end);
    if (read_ids && entries.end <= pages.size) scan.add(entries);
  }
  if (spec.storage == Storage::ragged) return use;
  use.max_id = scan.finish(use.max_entry);
  if (scan.negative()) find_smallest(spec, plan, pages, use);
  return use;
}

int32_t request_reading(const AttentionSpec& spec, const PlanView& plan, int64_t entry) {
  Positions p;
  for (const RowGroup& g : plan.groups) {
    const TokenRange seen = seen_by(spec, plan, g, p);
    if (seen.end <= seen.begin) continue;
    Entries e = entries_of(spec, g, seen);
    if (spec.storage == Storage::ragged) e = {g.list_begin + seen.begin, g.list_begin + seen.end};
    if (e.begin <= entry && entry < e.end) return p.request;
  }
  return -1;
}

}  // namespace kvloom::api
