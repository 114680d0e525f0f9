#include "kvloom/api/page_use.h"

#include "kvloom/attn/tile_range.h"
#include "kvloom/base/math.h"
#include "kvloom/cpu/index_scan.h"

namespace kvloom::api {
namespace {

/// The tokens of its list that rows of a group can see.
TokenRange seen_by(const KeyRange& range, const PlanView& plan, const RowGroup& g) {
  if (g.token_count == 0) return {0, 0};
  if (g.row_list < 0) return visible_tokens(g, range, g.q_pos0, g.q_pos0 + g.token_count - 1, g.prefix);
  int32_t low = INT32_MAX, high = INT32_MIN, prefix = 0;
  for (int32_t i = 0; i < g.token_count; ++i) {
    const RowEntry& row = plan.row_entries[g.row_list + i];
    low = min_of(low, row.q_pos);
    high = max_of(high, row.q_pos);
    prefix = max_of(prefix, row.prefix);
  }
  return visible_tokens(g, range, low, high, prefix);
}

/// Entries [begin, end) of the page table.
using Entries = cpu::IndexRange;

/// Looks for the largest id in the order in which groups name entries. Ranges are gathered first: a scan's end costs as much as a hundred ids.
class PageScan {
 public:
  explicit PageScan(IndexView pages) : pages_(pages) {}

  void add(Entries e) {
    for (; e.begin < e.end; e.begin = ranges_[count_++].end) {
      if (count_ == kMost) scan();
      ranges_[count_] = {e.begin, min_of(e.end, e.begin + cpu::kMaxScanRange)};
    }
  }
  /// The last call.
  cpu::IndexScan finish() {
    scan();
    return found_;
  }

 private:
  static constexpr int kMost = 128;

  void scan() {
    cpu::scan_index(pages_, ranges_, count_, found_);
    count_ = 0;
  }

  IndexView pages_;
  Entries ranges_[kMost];
  int count_ = 0;
  cpu::IndexScan found_;
};

/// The entries of `pages` (ragged: the tokens) that these tokens of a group's list lie in; none: begin == end.
Entries entries_of(const AttentionSpec& spec, const RowGroup& g, TokenRange seen) {
  if (seen.end <= seen.begin) return {0, 0};
  if (spec.storage == Storage::ragged) return {g.list_begin + seen.begin, g.list_begin + seen.end};
  const uint32_t page = uint32_t(spec.page_size);
  return {g.list_begin + uint32_t(seen.begin) / page, g.list_begin + uint32_t(seen.end - 1) / page + 1};
}

/// The smallest of all ids. They are read once more, but this batch is refused.
void find_smallest(const AttentionSpec& spec, const PlanView& plan, IndexView pages, PageUse& use) {
  for (const RowGroup& g : plan.groups) {
    const Entries seen = entries_of(spec, g, seen_by(spec.variant.range, plan, g));
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
  PageScan scan(pages);
  const bool ragged = spec.storage == Storage::ragged;
  for (const RowGroup& g : plan.groups) {
    const Entries entries = entries_of(spec, g, seen_by(spec.variant.range, plan, g));
    if (entries.end <= entries.begin) continue;
    if (ragged) {
      use.min_id = min_of(use.min_id, entries.begin);
      use.max_id = max_of(use.max_id, entries.end - 1);
    } else {
      use.entries_end = max_of(use.entries_end, entries.end);
      if (read_ids && entries.end <= pages.size) scan.add(entries);
    }
  }
  if (ragged) return use;
  const cpu::IndexScan found = scan.finish();
  use.max_id = found.high;
  use.max_entry = found.first;
  if (found.negative) find_smallest(spec, plan, pages, use);
  return use;
}

int32_t request_reading(const AttentionSpec& spec, const PlanView& plan, int64_t entry) {
  for (const RowGroup& g : plan.groups) {
    const Entries e = entries_of(spec, g, seen_by(spec.variant.range, plan, g));
    if (entry < e.begin || e.end <= entry) continue;
    return g.row_list < 0 ? g.request : plan.row_entries[g.row_list + g.token_count - 1].request;
  }
  return -1;
}

}  // namespace kvloom::api
