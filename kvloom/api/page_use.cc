#include "kvloom/api/page_use.h"

#include "kvloom/attn/tile_range.h"
#include "kvloom/base/math.h"

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

/// Extremes of ids[begin, end): the inner loop of the whole check, kept free of anything that stops vectorisation.
template <class T>
void extremes(const T* ids, int64_t begin, int64_t end, T& low, T& high) {
  low = high = ids[begin];
  for (int64_t i = begin + 1; i < end; ++i) {
    low = min_of(low, ids[i]);
    high = max_of(high, ids[i]);
  }
}

int64_t find_entry(IndexView pages, int64_t begin, int64_t end, int64_t id) {
  while (begin < end && pages[begin] != id) ++begin;
  return begin;
}

void add_entries(PageUse& use, IndexView pages, int64_t begin, int64_t end, int32_t request) {
  int64_t low, high;
  if (pages.is_64) {
    extremes(static_cast<const int64_t*>(pages.data), begin, end, low, high);
  } else {
    int32_t low32, high32;
    extremes(static_cast<const int32_t*>(pages.data), begin, end, low32, high32);
    low = low32;
    high = high32;
  }
  if (low < use.min_id) {
    use.min_id = low;
    use.min_entry = find_entry(pages, begin, end, low);
  }
  if (high > use.max_id) {
    use.max_id = high;
    use.max_entry = find_entry(pages, begin, end, high);
    use.max_request = request;
  }
}

}  // namespace

PageUse find_page_use(const AttentionSpec& spec, const PlanView& plan, IndexView pages, bool read_ids) {
  PageUse use;
  for (const RowGroup& g : plan.groups) {
    if (g.token_count == 0) continue;
    const Positions p = positions_of(plan, g);
    const TokenRange seen = visible_tokens(g, spec.variant.range, p.min, p.max, p.prefix);
    if (seen.end <= seen.begin) continue;
    if (spec.storage == Storage::ragged) {
      const int64_t last = g.list_begin + seen.end - 1;
      use.min_id = min_of(use.min_id, g.list_begin + seen.begin);
      if (last > use.max_id) {
        use.max_id = last;
        use.max_request = p.request;
      }
      continue;
    }
    const int64_t begin = g.list_begin + seen.begin / spec.page_size;
    const int64_t end = g.list_begin + (seen.end - 1) / spec.page_size + 1;
    use.entries_end = max_of(use.entries_end, end);
    if (read_ids && end <= pages.size) add_entries(use, pages, begin, end, p.request);
  }
  return use;
}

}  // namespace kvloom::api
