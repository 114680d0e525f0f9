#include "kvloom/plan/emit.h"

#include "kvloom/base/math.h"
#include "kvloom/plan/item_words.h"
#include "kvloom/support/check.h"

#include <algorithm>

namespace kvloom::plan {

void check_room(const char* what, int64_t used, int64_t room) {
  if (used > room) [[unlikely]]
    fail(ErrorCode::internal, "plan: {}: got {}, the layout has {}; please report the batch", what, used, room);
}

namespace {

/// Place of a piece within its CTA: shared levels first, so that no CTA ends up merging many units; then the two classes in the
/// schedule's order.
int32_t bucket_of(const Tile& t, int32_t cta, CtaOrder order) {
  if (t.shared) return 3 * cta;
  if (order == CtaOrder::as_placed) return 3 * cta + 1;
  const bool memory_first = cta & 1;
  return 3 * cta + ((t.kernel_class == 0) == memory_first ? 1 : 2);
}

/// First item of every bucket, and cta_indptr.
void count_items(const Work& work, const Schedule& schedule, const PlanLayout& layout, EmitMemory& memory, PlanSections& out) {
  const int32_t ctas = out.header->num_ctas;
  memory.bucket.assign(3 * size_t(ctas) + 1, 0);
  for (const Piece& p : schedule.pieces) memory.bucket[bucket_of(work.tiles[p.tile], p.cta, schedule.order) + 1] += p.run_count;
  int32_t items = 0;
  for (int32_t c = 0; c < ctas; ++c) {
    out.cta_indptr[c] = items;
    for (int32_t b = 3 * c; b < 3 * c + 3; ++b) memory.bucket[b + 1] = items += memory.bucket[b + 1];
  }
  check_room("work items", items, layout.max_items);
  out.cta_indptr[ctas] = items;
  out.header->num_items = items;
}

void note_partial(EmitMemory& memory, int32_t unit, int32_t kv_begin, int32_t item) {
  PartialItem& partial = memory.unsorted.emplace_back();  // written in its place, as in add_piece()
  partial.unit = unit;
  partial.kv_begin = kv_begin;
  partial.item = item;
}

/// Writes a piece's items from `at` on, and notes which of them are partial.
void place_piece(const Tile& t, const Piece& p, bool fixed, int32_t at, EmitMemory& memory, WorkItem* items) {
  ItemWords(t).write_runs(t, p.run, p.run + p.run_count, items + at);
  memory.loads[p.cta] += p.run_count * run_cost(t, p.run, int64_t(p.kv_end) - p.kv_begin);
  const bool whole = p.run_count > 1 || is_whole(t, p);  // only whole runs come together
  if (!whole) {
    items[at].kv_begin = p.kv_begin;
    items[at].kv_end = p.kv_end;
    items[at].chunked = fixed && p.kv_begin > t.kv_begin;
  }
  if (whole && !t.several) return;
  for (int32_t r = 0; r < p.run_count; ++r) note_partial(memory, t.first_unit + p.run + r, p.kv_begin, at + r);
}

void write_pieces(const Work& work, const Schedule& schedule, const PlanLayout& layout, EmitMemory& memory, PlanSections& out) {
  const bool fixed = out.header->split_tokens > 0;
  memory.loads.assign(out.header->num_ctas, 0);
  count_items(work, schedule, layout, memory, out);
  for (const Piece& p : schedule.pieces) {
    const Tile& t = work.tiles[p.tile];
    int32_t& next = memory.bucket[bucket_of(t, p.cta, schedule.order)];
    place_piece(t, p, fixed, next, memory, out.items);
    next += p.run_count;
  }
}

/// Partial items by unit and keys; unit_partial[u]: the first of unit u's.
void sort_partials(const Work& work, EmitMemory& memory) {
  std::vector<int32_t>& first = memory.unit_partial;
  first.assign(size_t(work.num_units) + 2, 0);
  for (const PartialItem& p : memory.unsorted) ++first[p.unit + 2];
  for (int32_t u = 0; u < work.num_units; ++u) first[u + 2] += first[u + 1];
  memory.partials.resize(memory.unsorted.size());
  for (const PartialItem& p : memory.unsorted) memory.partials[first[p.unit + 1]++] = p;
  for (size_t i = 1; i < memory.partials.size(); ++i) {  // a unit has few
    const PartialItem p = memory.partials[i];
    PartialItem* at = &memory.partials[i];
    for (; at > memory.partials.data() && at[-1].unit == p.unit && at[-1].kv_begin > p.kv_begin; --at) *at = at[-1];
    *at = p;
  }
}

/// Gives every partial item its scratch rows, units in order and each unit's items by their keys.
void place_partials(EmitMemory& memory, const PlanLayout& layout, PlanSections& out) {
  int64_t row = 0;
  for (const PartialItem& p : memory.partials) {
    WorkItem& item = out.items[p.item];
    item.partial_row = int32_t(row);
    row += int64_t(item_partials(*out.header, item)) * item.row_count * item.kv_head_count;
    check_room("scratch rows", row, layout.max_scratch_rows);
  }
  out.header->scratch_rows = int32_t(row);
}

/// A unit is a tile and a head run: nothing but cuts makes partials, and the tokens of every tile are consecutive. Places the partials,
/// too.
void emit_units_by_tile(const TileRules& rules, const GroupList& list, const PlanLayout& layout, EmitMemory& memory, PlanSections& out) {
  PlanHeader& h = *out.header;
  const int32_t num_partials = int32_t(memory.partials.size());
  const PartialItem* const partials = memory.partials.data();
  check_room("touches", num_partials, layout.max_touches);
  int32_t units = 0;
  int32_t entries = 0;
  int64_t row = 0;  // of the scratch
  for (int32_t k = 0; k < num_partials; ++units) {
    check_room("merge units", units + int64_t(1), layout.max_units);
    const int32_t first = k;
    const int32_t first_entry = entries;
    const WorkItem& like = out.items[partials[first].item];
    const int32_t rows = like.row_count;
    const int32_t heads = like.kv_head_count;
    do {
      WorkItem& item = out.items[partials[k].item];
      item.partial_row = int32_t(row);
      item.touch_begin = k;
      item.touch_count = 1;
      out.touches[k] = units;
      const int32_t parts = item_partials(h, item);
      check_room("merge entries", entries + int64_t(parts), layout.max_entries);
      for (int32_t i = 0; i < parts; ++i, row += int64_t(rows) * heads) out.entries[entries++] = {int32_t(row), rows};
    } while (++k < num_partials && partials[k].unit == partials[first].unit);
    const RowGroup& g = list.groups[like.group];
    const int32_t token = g.row_list < 0 ? g.token_begin : list.row_entries[g.row_list].token;
    MergeUnit& u = out.units[units];
    u.row_begin = token * rules.group_size + like.row_begin;
    u.row_count = rows;
    u.kv_head = like.kv_head;
    u.kv_head_count = heads;
    u.entry_begin = first_entry;
    u.entry_count = entries - first_entry;
    u.arrivals = k - first;
  }
  check_room("scratch rows", row, layout.max_scratch_rows);
  h.scratch_rows = int32_t(row);
  h.num_units = units;
  h.num_entries = entries;
  h.num_touches = num_partials;
}

}  // namespace

void emit(const TileRules& rules, const GroupList& list, const Work& work, const Schedule& schedule, const PlanLayout& layout,
          EmitMemory& memory, PlanSections out) {
  if (!schedule.cuts.empty()) return emit_stream(rules, list, work, schedule.cuts, layout, memory, out);
  PlanHeader& h = *out.header;
  memory.unsorted.clear();
  write_pieces(work, schedule, layout, memory, out);
  sort_partials(work, memory);
  for (int64_t load : memory.loads) {
    h.cost_total += uint64_t(load);
    h.cost_max = max_of(h.cost_max, uint64_t(load));
  }
  if (memory.partials.empty()) return;
  if (work.levels || work.scattered) {
    place_partials(memory, layout, out);
    emit_units_by_row(rules, list, work, h.total_tokens, layout, memory, out);
  } else {
    emit_units_by_tile(rules, list, layout, memory, out);
  }
}

}  // namespace kvloom::plan
