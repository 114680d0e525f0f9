// Rows in several groups (levels). Coverage is counted a (token, KV head): a group names one head or all of them.
#include "kvloom/base/math.h"
#include "kvloom/plan/emit.h"

namespace kvloom::plan {

void index_covers(const GroupList& list, int32_t total_tokens, EmitMemory& memory) {
  memory.cover_begin.assign(size_t(total_tokens) + 1, 0);
  auto each = [&](auto&& visit) {
    for (int32_t group = 0; group < int32_t(list.groups.size()); ++group) {
      const RowGroup& g = list.groups[group];
      for (int32_t i = 0; i < g.token_count; ++i) {
        visit(g.row_list < 0 ? g.token_begin + i : list.row_entries[g.row_list + i].token, Cover{group, i});
      }
    }
  };
  int64_t count = 0;
  each([&](int32_t token, Cover) { ++memory.cover_begin[token], ++count; });
  int32_t sum = 0;
  for (int32_t& begin : memory.cover_begin) {
    const int32_t n = begin;
    begin = sum;
    sum += n;
  }
  memory.covers.resize(count);
  each([&](int32_t token, Cover c) { memory.covers[memory.cover_begin[token]++] = c; });
  for (size_t t = memory.cover_begin.size() - 1; t > 0; --t) memory.cover_begin[t] = memory.cover_begin[t - 1];
  memory.cover_begin[0] = 0;
}

namespace {

/// Heads of one token that some tiles cover: all heads so many times, and single ones by stamp.
class HeadCount {
 public:
  HeadCount(std::vector<int32_t>& stamps, int32_t num_heads) : stamps_(stamps), num_heads_(num_heads) { stamps_.assign(num_heads, 0); }

  void clear() {
    if (singles_ > 0) std::fill(stamps_.begin(), stamps_.end(), 0);
    all_ = singles_ = distinct_ = 0;
  }
  void add(int32_t head) {
    if (head < 0) {
      ++all_;
    } else {
      ++singles_;
      distinct_ += stamps_[head]++ == 0;
    }
  }
  /// True if every head that a group with this kv_head names is covered.
  bool covers(int32_t head) const { return all_ > 0 || (head < 0 ? distinct_ == num_heads_ : stamps_[head] > 0); }
  /// True if some head that the group names is covered.
  bool touches(int32_t head) const { return all_ > 0 || (head < 0 ? singles_ > 0 : stamps_[head] > 0); }
  /// True if some head that the group (which is counted itself) names is covered at least twice.
  bool overlaps(int32_t head) const { return head < 0 ? all_ + singles_ > 1 : all_ + stamps_[head] > 1; }

 private:
  std::vector<int32_t>& stamps_;
  const int32_t num_heads_;
  int32_t all_ = 0;
  int32_t singles_ = 0;
  int32_t distinct_ = 0;
};

/// Every tile of a cover's token (several where a token's heads fill several tiles).
template <class F>
void each_tile(const TileRules& rules, const GroupList& list, Work& work, const Cover& c, F&& f) {
  const RowGroup& g = list.groups[c.group];
  const int32_t parts = rules.shape[rules.class_of(g)].tiles_per_token;
  const int32_t tile = tile_of(rules, work, g, c.group, c.index * rules.group_size);
  for (int32_t p = 0; p < parts; ++p) f(work.tiles[tile - p]);  // last rows first
}

bool sees_keys(const Tile& t) { return t.kv_begin < t.kv_end; }

void drop_needless(Work& work) {
  for (int c = 0; c < 2; ++c) work.cost[c] = work.units[c] = 0;
  for (Tile& t : work.tiles) {
    if (!sees_keys(t) && !t.needed) t.runs = 0, t.cost = 0;
    work.cost[t.kernel_class] += t.cost;
    work.units[t.kernel_class] += t.runs;
  }
}

}  // namespace

void resolve_overlaps(const TileRules& rules, const GroupList& list, Work& work, EmitMemory& memory) {
  HeadCount count(memory.head_stamp, rules.num_kv_heads);
  const int32_t tokens = int32_t(memory.cover_begin.size()) - 1;
  auto covers_of = [&](int32_t token, auto&& f) {
    for (int32_t i = memory.cover_begin[token]; i < memory.cover_begin[token + 1]; ++i) f(memory.covers[i]);
  };
  auto head_of = [&](const Cover& c) { return list.groups[c.group].kv_head; };
  auto live = [&](const Cover& c) {
    bool yes = false;
    each_tile(rules, list, work, c, [&](Tile& t) { yes |= t.runs > 0; });
    return yes;
  };

  // A tile without keys stays only if some row of it has keys nowhere: that row's output is still to be written.
  for (int32_t token = 0; token < tokens; ++token) {
    count.clear();
    covers_of(token, [&](const Cover& c) {
      bool keys = false;
      each_tile(rules, list, work, c, [&](Tile& t) { keys |= sees_keys(t); });
      if (keys) count.add(head_of(c));
    });
    covers_of(token, [&](const Cover& c) {
      if (!count.covers(head_of(c))) each_tile(rules, list, work, c, [](Tile& t) { t.needed = true; });
    });
  }
  drop_needless(work);

  for (int32_t token = 0; token < tokens; ++token) {
    count.clear();
    covers_of(token, [&](const Cover& c) {
      if (!live(c)) return;
      const bool later = count.touches(head_of(c));
      if (rules.fixed_split && later) each_tile(rules, list, work, c, [&](Tile& t) { t.pinned = true; });
      count.add(head_of(c));
    });
    covers_of(token, [&](const Cover& c) {
      if (!live(c) || !count.overlaps(head_of(c))) return;
      each_tile(rules, list, work, c, [&](Tile& t) { t.several = true; });
      work.levels = true;
    });
  }
}

}  // namespace kvloom::plan
