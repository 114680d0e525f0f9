// Are the keys of every row covered exactly once? Asked tile by tile (fast), and pair by pair (slow, leaning on nothing but the mask).
#include "kvloom/attn/tile_range.h"
#include "kvloom/plan/validate_checks.h"

#include <algorithm>
#include <tuple>
#include <vector>

namespace kvloom::plan {
namespace {

/// An item as one KV head sees it.
struct Piece {
  int32_t group, head;
  int32_t row_begin, row_end;
  int32_t kv_begin, kv_end;
  int32_t item;

  auto key() const { return std::tie(group, head, row_begin, row_end, kv_begin, kv_end, item); }
  bool same_tile(const Piece& p) const { return group == p.group && head == p.head && row_begin == p.row_begin && row_end == p.row_end; }
};

/// All pieces; those of a (group, head) together, those of a row tile together, ascending in keys.
std::vector<Piece> pieces_of(const Subject& s) {
  std::vector<Piece> pieces;
  for (int64_t i = 0; i < s.plan.items.size; ++i) {
    const WorkItem& w = s.plan.items[i];
    for (int32_t h = w.kv_head; h < w.kv_head + w.kv_head_count; ++h) {
      pieces.push_back({w.group, h, w.row_begin, w.row_begin + w.row_count, w.kv_begin, w.kv_end, int32_t(i)});
    }
  }
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.key() < b.key(); });
  return pieces;
}

/// The list tokens that packed rows [row_begin, row_end) of a group can see. Empty row ranges see nothing.
TokenRange hull_of(const Subject& s, const RowGroup& g, int64_t row_begin, int64_t row_end) {
  if (row_begin >= row_end) return {g.kv_begin, g.kv_begin};
  const TokenRange tokens = tile_tokens(int32_t(row_begin), int32_t(row_end - row_begin), s.group_size);
  const RowEntry first = row_of(s.plan, g, tokens.begin);
  if (g.row_list < 0) return visible_tokens(g, s.range, first.q_pos, first.q_pos + (tokens.end - tokens.begin - 1), g.prefix);
  int32_t low = first.q_pos, high = first.q_pos, prefix = first.prefix;
  for (int32_t i = tokens.begin + 1; i < tokens.end; ++i) {
    const RowEntry row = row_of(s.plan, g, i);
    low = min_of(low, row.q_pos);
    high = max_of(high, row.q_pos);
    prefix = max_of(prefix, row.prefix);
  }
  return visible_tokens(g, s.range, low, high, prefix);
}

/// Cuts fall on the grid of tile_kv, under fixed_split on that of split_tokens, where a fold of several chunks starts the row.
std::string check_cut(const Subject& s, const Piece& p, bool first) {
  const WorkItem& w = s.plan.items[p.item];
  const int32_t tile_kv = s.header().classes[w.kernel_class].tile_kv, split = s.header().split_tokens;
  if (first) return {};
  if (w.kv_begin % tile_kv != 0)
    return fault("item {}: keys from {}: wanted a cut at a multiple of {} (tile_kv)", p.item, w.kv_begin, tile_kv);
  if (split > 0 && w.kv_begin % split != 0) {
    return fault("item {}: keys from {}: wanted a cut at a multiple of {} (split_tokens)", p.item, w.kv_begin, split);
  }
  if (split > 0 && !w.chunked && w.kv_end - w.kv_begin > split) {
    return fault("item {}: keys [{}, {}): several chunks of {} in one partial, wanted one a chunk past the first item of a row", p.item,
                 w.kv_begin, w.kv_end, split);
  }
  return {};
}

/// `pieces` [begin, end) are one row tile: their key ranges must be the tile's visible range, cut at multiples of tile_kv.
std::string check_tile(const Subject& s, const Piece* begin, const Piece* end) {
  const RowGroup& g = s.plan.groups[begin->group];
  const TokenRange hull = hull_of(s, g, begin->row_begin, begin->row_end);
  if (hull.begin == hull.end) {
    if (end - begin == 1 && begin->kv_begin == begin->kv_end) return {};
    return fault("item {}: keys [{}, {}): its rows see none of group {}, or an empty item repeats", begin->item, begin->kv_begin,
                 begin->kv_end, begin->group);
  }
  int32_t covered = hull.begin;
  for (const Piece* p = begin; p != end; ++p) {
    if (p->kv_begin != covered || p->kv_end <= p->kv_begin || p->kv_end > hull.end) {
      return fault(
          "item {}: keys [{}, {}) of rows [{}, {}), head {}, group {}: wanted a range from {} (what comes before is covered) to at most {}",
          p->item, p->kv_begin, p->kv_end, p->row_begin, p->row_end, p->head, p->group, covered, hull.end);
    }
    if (std::string e = check_cut(s, *p, p == begin); !e.empty()) return e;
    covered = p->kv_end;
  }
  if (covered != hull.end) {
    return fault("group {}: rows [{}, {}), head {}: keys [{}, {}) are in no item", begin->group, begin->row_begin, begin->row_end,
                 begin->head, covered, hull.end);
  }
  return {};
}

/// Rows that no item of the group takes must see nothing of it. Listed rows stand anywhere, and what lies between two of them neither may
/// see: each is asked alone.
std::string check_gap(const Subject& s, int32_t group, int32_t head, int64_t row_begin, int64_t row_end) {
  const RowGroup& g = s.plan.groups[group];
  while (row_begin < row_end) {
    const int64_t next = g.row_list < 0 ? row_end : min_of<int64_t>((row_begin / s.group_size + 1) * s.group_size, row_end);
    const TokenRange hull = hull_of(s, g, row_begin, next);
    if (hull.begin != hull.end) {
      return fault("group {}: rows [{}, {}), head {}: in no item, but they see keys [{}, {})", group, row_begin, next, head, hull.begin,
                   hull.end);
    }
    row_begin = next;
  }
  return {};
}

/// Calls f(group, head, first piece, last piece) for every KV head that a group is for, also where it has no pieces.
template <class F>
std::string for_each_group_head(const Subject& s, const std::vector<Piece>& pieces, F&& f) {
  const Piece* p = pieces.data();
  const Piece* const end = p + pieces.size();
  for (int32_t group = 0; group < s.header().num_groups; ++group) {
    const RowGroup& g = s.plan.groups[group];
    const int32_t head_begin = g.kv_head >= 0 ? g.kv_head : 0, head_end = g.kv_head >= 0 ? g.kv_head + 1 : s.kv_heads;
    for (int32_t head = head_begin; head < head_end; ++head) {
      const Piece* q = p;
      while (q != end && q->group == group && q->head == head) ++q;
      if (std::string e = f(group, head, p, q); !e.empty()) return e;
      p = q;
    }
  }
  return {};
}

/// Every row of a (group, head), every key of its list: kept keys in exactly one piece, others in at most one.
std::string walk_pairs(const Subject& s, int32_t group, int32_t head, const Piece* begin, const Piece* end) {
  const RowGroup& g = s.plan.groups[group];
  std::vector<int32_t> times(g.kv_end - g.kv_begin);
  for (int32_t row = 0; row < s.rows_of(g); ++row) {
    std::fill(times.begin(), times.end(), 0);
    for (const Piece* p = begin; p != end; ++p) {
      if (row < p->row_begin || row >= p->row_end) continue;
      for (int32_t j = p->kv_begin; j < p->kv_end; ++j) ++times[j - g.kv_begin];
    }
    const RowEntry r = row_of(s.plan, g, row / s.group_size);
    for (int32_t j = g.kv_begin; j < g.kv_end; ++j) {
      const bool kept = g.kv_position != KvPosition::linear || keeps(s.range, r.prefix, r.q_pos, g.kv_pos0 + j);
      const int32_t n = times[j - g.kv_begin];
      if (n > 1 || (kept && n == 0)) {
        return fault("group {}: row {}, head {}, key {}: in {} items, wanted {}", group, row, head, j, n, kept ? "1" : "at most 1");
      }
    }
  }
  return {};
}

}  // namespace

std::string check_keys(const Subject& s) {
  const std::vector<Piece> pieces = pieces_of(s);
  return for_each_group_head(s, pieces, [&](int32_t group, int32_t head, const Piece* p, const Piece* end) {
    int64_t next_row = 0;
    while (p != end) {
      const Piece* q = p;
      while (q != end && q->same_tile(*p)) ++q;
      if (p->row_begin < next_row) {
        return fault("item {}: rows [{}, {}) of group {}, head {}: overlap another row tile", p->item, p->row_begin, p->row_end, group,
                     head);
      }
      if (std::string e = check_gap(s, group, head, next_row, p->row_begin); !e.empty()) return e;
      if (std::string e = check_tile(s, p, q); !e.empty()) return e;
      next_row = p->row_end;
      p = q;
    }
    return check_gap(s, group, head, next_row, s.rows_of(s.plan.groups[group]));
  });
}

std::string check_keys_exhaustively(const Subject& s) {
  constexpr int64_t kMaxPairs = int64_t(1) << 28;
  int64_t pairs = 0;
  for (const RowGroup& g : s.plan.groups) {
    const int64_t of_head = s.rows_of(g) * (int64_t(g.kv_end) - g.kv_begin);
    if (of_head <= kMaxPairs) pairs += of_head * (g.kv_head >= 0 ? 1 : s.kv_heads);
    if (of_head > kMaxPairs || pairs > kMaxPairs) return fault("exhaustive: more than {} row-key pairs; validate without it", kMaxPairs);
  }
  const std::vector<Piece> pieces = pieces_of(s);
  return for_each_group_head(
      s, pieces, [&](int32_t group, int32_t head, const Piece* p, const Piece* end) { return walk_pairs(s, group, head, p, end); });
}

}  // namespace kvloom::plan
