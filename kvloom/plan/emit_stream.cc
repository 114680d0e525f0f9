// Items of a stream lie in the order of its line: tile after tile, run after run, and one more wherever a cut falls inside a unit. So the
// parts of a unit come one behind another, and nothing has to be sorted to make merge units of them.
#include "kvloom/base/math.h"
#include "kvloom/plan/emit.h"
#include "kvloom/plan/item_words.h"

#include <algorithm>

namespace kvloom::plan {
namespace {

/// What every CTA has to do, and how much there is to write. Returns the units that are cut.
int32_t count_stream(const Work& work, Span<const Place> cuts, const PlanLayout& layout, PlanHeader& h) {
  int32_t inside = 0, units = 0;
  int32_t tile = -1, run = 0;  // of the last cut inside a unit
  uint64_t total = 0, most = 0;
  for (int64_t c = 0; c + 1 < cuts.size; ++c) {
    const Place& from = cuts[c];
    int64_t load = cuts[c + 1].position - from.position;
    if (from.inside && !from.is(cuts[c + 1])) {
      load += fixed_cost(work.tiles[size_t(from.tile)], from.run);
      ++inside;
      units += (tile != from.tile) | (run != from.run);
      tile = from.tile, run = from.run;
    }
    total += uint64_t(load);
    most = max_of(most, uint64_t(load));
  }
  h.cost_total = total;
  h.cost_max = most;
  h.num_items = work.units[0] + work.units[1] + inside;
  h.num_units = units;
  h.num_touches = units + inside;
  check_room("work items", h.num_items, layout.max_items);
  check_room("merge units", h.num_units, layout.max_units);
  check_room("touches", h.num_touches, layout.max_touches);
  check_room("merge entries", h.num_touches, layout.max_entries);  // one a part, but for fixed_split
  return units;
}

/// Items and cta_indptr. Notes the units that are cut.
template <bool kFixed>
void write_items(const Work& work, const Place* cut, std::vector<CutUnit>& units, PlanSections& out) {
  CutUnit* unit = units.data();
  int32_t* indptr = out.cta_indptr;
  WorkItem* next = out.items;
  const int32_t num_tiles = int32_t(work.tiles.size());
  for (int32_t i = 0; i < num_tiles; ++i) {
    const Tile& t = work.tiles[size_t(i)];
    if (t.runs == 0) continue;
    const ItemWords words(t);
    int32_t run = 0;          // whole runs before this one are written
    while (cut->tile == i) {  // the last cut is behind all tiles
      next = words.write_runs(t, run, cut->run, next);
      run = cut->run;
      int32_t kv = t.kv_begin;
      WorkItem* const first = next;
      for (; cut->tile == i && cut->run == run; ++cut) {
        if (cut->kv > kv) {
          words.write_part(t, run, kv, cut->kv, next);
          if (kFixed && kv > t.kv_begin) next->chunked = 1;
          ++next;
          kv = cut->kv;
        }
        *indptr++ = int32_t(next - out.items);
      }
      if (kv == t.kv_begin) continue;
      words.write_part(t, run++, kv, t.kv_end, next);
      if (kFixed) next->chunked = 1;
      ++next;
      unit->item = int32_t(first - out.items);
      unit->parts = int32_t(next - first);
      ++unit;
    }
    next = words.write_runs(t, run, t.runs, next);
  }
  std::fill(indptr, out.cta_indptr + out.header->num_ctas + 1, int32_t(next - out.items));
}

/// Where the partials of the parts of a unit go: from scratch row `row` and entry `entry` on, both of which move on. One partial a part but
/// for fixed_split, where a part may have one a chunk.
template <bool kFixed>
inline void write_parts(const CutUnit& cut, int32_t unit, int32_t touch, const PlanLayout& layout, int64_t& row, int32_t& entry,
                        PlanSections& out) {
  WorkItem* const item = out.items + cut.item;
  const int32_t rows = item->row_count, step = rows * item->kv_head_count;
  int32_t to = entry;
  int64_t from = row;
  for (int32_t i = 0; i < cut.parts; ++i) {
    store_word(two_words(int32_t(from), touch + i), &item[i].partial_row);
    item[i].touch_count = 1;
    out.touches[touch + i] = unit;
    int32_t partials = 1;
    if constexpr (kFixed) {
      partials = item_partials(*out.header, item[i]);
      check_room("merge entries", to + int64_t(partials), layout.max_entries);
    }
    do {
      store_word(two_words(int32_t(from), rows), &out.entries[to++]);
      from += step;
    } while (kFixed && --partials > 0);
  }
  entry = to;
  row = from;
}

/// Merge units with their entries and touches, and where each part's partials go.
template <bool kFixed>
void write_units(const TileRules& rules, const GroupList& list, const std::vector<CutUnit>& cut_units, const PlanLayout& layout,
                 PlanSections& out) {
  int32_t touch = 0, entry = 0;
  int64_t row = 0;  // of the scratch
  const int32_t num_units = int32_t(cut_units.size());
  for (int32_t i = 0; i < num_units; ++i) {
    const CutUnit cut = cut_units[size_t(i)];
    const WorkItem& like = out.items[cut.item];
    const RowGroup& g = list.groups[size_t(like.group)];
    const int32_t token = g.row_list < 0 ? g.token_begin : list.row_entries[size_t(g.row_list)].token;
    const int32_t first_entry = entry;
    write_parts<kFixed>(cut, i, touch, layout, row, entry, out);
    touch += cut.parts;
    MergeUnit& u = out.units[i];
    u.row_begin = token * rules.group_size + like.row_begin;
    u.row_count = like.row_count;
    u.kv_head = like.kv_head;
    u.kv_head_count = like.kv_head_count;
    u.entry_begin = first_entry;
    u.entry_count = entry - first_entry;
    u.arrivals = cut.parts;
  }
  check_room("scratch rows", row, layout.max_scratch_rows);
  out.header->scratch_rows = int32_t(row);
  out.header->num_entries = entry;
}

}  // namespace

void emit_stream(const TileRules& rules, const GroupList& list, const Work& work, Span<const Place> cuts, const PlanLayout& layout,
                 EmitMemory& memory, PlanSections& out) {
  memory.cut_units.resize(size_t(count_stream(work, cuts, layout, *out.header)));
  const auto write = [&]<bool kFixed>() {
    write_items<kFixed>(work, cuts.data, memory.cut_units, out);
    write_units<kFixed>(rules, list, memory.cut_units, layout, out);
  };
  if (out.header->split_tokens > 0) {
    write.operator()<true>();
  } else {
    write.operator()<false>();
  }
}

}  // namespace kvloom::plan
