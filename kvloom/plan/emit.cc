#include "kvloom/plan/emit.h"

#include "kvloom/base/math.h"
#include "kvloom/support/check.h"

#include <algorithm>
#include <cstring>

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

/// The items of a piece, from `to` on.
void write_piece(const Tile& t, const Piece& p, bool fixed, WorkItem* to) {
  const int32_t last = p.run + p.run_count;
  int32_t kv_head = t.kv_head + p.run * t.kv_head_count;
  for (int32_t run = p.run; run < last; ++run, ++to, kv_head += t.kv_head_count) {
    *to = t;
    to->kv_head = uint16_t(kv_head);
  }
  if (last == t.runs) to[-1].kv_head_count = t.last_heads;
  if (p.run_count > 1 || is_whole(t, p)) return;  // only whole runs come together
  to[-1].kv_begin = p.kv_begin;
  to[-1].kv_end = p.kv_end;
  to[-1].chunked = fixed && p.kv_begin > t.kv_begin;
}

/// Writes a piece's items from `at` on, and notes which of them are partial.
void place_piece(const Tile& t, const Piece& p, bool fixed, int32_t at, EmitMemory& memory, WorkItem* items) {
  write_piece(t, p, fixed, items + at);
  memory.loads[p.cta] += p.run_count * run_cost(t, p.run, int64_t(p.kv_end) - p.kv_begin);
  if (!t.several && (p.run_count > 1 || is_whole(t, p))) return;
  for (int32_t r = 0; r < p.run_count; ++r) {
    PartialItem& partial = memory.partials.emplace_back();
    partial.unit = t.first_unit + p.run + r;
    partial.kv_begin = p.kv_begin;
    partial.item = at + r;
  }
}

/// Where pieces come in the order of their CTAs and nothing goes first, items are written one after the other.
void write_items_in_order(const Work& work, const Schedule& schedule, const PlanLayout& layout, EmitMemory& memory, PlanSections& out) {
  const int32_t ctas = out.header->num_ctas;
  const bool fixed = out.header->split_tokens > 0;
  const int32_t room = layout.max_items;
  int32_t cta = 0;
  int32_t items = 0;
  for (const Piece& p : schedule.pieces) {
    while (cta <= p.cta) out.cta_indptr[cta++] = items;
    if (items + p.run_count > room) [[unlikely]]
      check_room("work items", items + p.run_count, room);
    place_piece(work.tiles[p.tile], p, fixed, items, memory, out.items);
    items += p.run_count;
  }
  while (cta <= ctas) out.cta_indptr[cta++] = items;
  out.header->num_items = items;
}

void write_items(const Work& work, const Schedule& schedule, const PlanLayout& layout, EmitMemory& memory, PlanSections& out) {
  const bool fixed = out.header->split_tokens > 0;
  memory.loads.assign(out.header->num_ctas, 0);
  memory.partials.clear();
  if (schedule.by_cta && !work.shared && schedule.order == CtaOrder::as_placed) {
    return write_items_in_order(work, schedule, layout, memory, out);
  }
  count_items(work, schedule, layout, memory, out);
  for (const Piece& p : schedule.pieces) {
    const Tile& t = work.tiles[p.tile];
    int32_t& next = memory.bucket[bucket_of(t, p.cta, schedule.order)];
    place_piece(t, p, fixed, next, memory, out.items);
    next += p.run_count;
  }
}

/// Gives every partial item its scratch rows, units in order and each unit's items by their keys.
void place_partials(EmitMemory& memory, const PlanLayout& layout, PlanSections& out) {
  auto before = [](const PartialItem& a, const PartialItem& b) { return a.unit != b.unit ? a.unit < b.unit : a.kv_begin < b.kv_begin; };
  if (!std::is_sorted(memory.partials.begin(), memory.partials.end(), before)) {  // a stream makes them in order
    std::sort(memory.partials.begin(), memory.partials.end(), before);
  }
  int64_t row = 0;
  for (const PartialItem& p : memory.partials) {
    WorkItem& item = out.items[p.item];
    item.partial_row = int32_t(row);
    row += int64_t(item_partials(*out.header, item)) * item.row_count * item.kv_head_count;
    check_room("scratch rows", row, layout.max_scratch_rows);
  }
  out.header->scratch_rows = int32_t(row);
}

/// A unit is a tile and a head run: nothing but cuts makes partials, and the tokens of every tile are consecutive.
void emit_units_by_tile(const TileRules& rules, const GroupList& list, const PlanLayout& layout, EmitMemory& memory, PlanSections& out) {
  PlanHeader& h = *out.header;
  int32_t unit = -1;
  int32_t entries = 0;
  check_room("touches", int64_t(memory.partials.size()), layout.max_touches);
  for (int32_t k = 0; k < int32_t(memory.partials.size()); ++k) {
    const PartialItem& p = memory.partials[k];
    WorkItem& item = out.items[p.item];
    if (k == 0 || p.unit != memory.partials[k - 1].unit) {
      check_room("merge units", ++unit + 1, layout.max_units);
      const RowGroup& g = list.groups[item.group];
      const int32_t token = g.row_list < 0 ? g.token_begin : list.row_entries[g.row_list].token;
      out.units[unit] = {token * rules.group_size + item.row_begin, item.row_count, item.kv_head, item.kv_head_count, entries, 0, 0};
    }
    const int32_t parts = item_partials(h, item);
    check_room("merge entries", entries + int64_t(parts), layout.max_entries);
    for (int32_t i = 0; i < parts; ++i) {
      out.entries[entries++] = {item.partial_row + i * item.row_count * item.kv_head_count, item.row_count};
    }
    out.units[unit].entry_count += parts;
    ++out.units[unit].arrivals;
    item.touch_begin = k;
    item.touch_count = 1;
    out.touches[k] = unit;
  }
  h.num_units = unit + 1;
  h.num_entries = entries;
  h.num_touches = int32_t(memory.partials.size());
}

}  // namespace

void emit(const TileRules& rules, const GroupList& list, const Work& work, const Schedule& schedule, const PlanLayout& layout,
          EmitMemory& memory, PlanSections out) {
  PlanHeader& h = *out.header;
  write_items(work, schedule, layout, memory, out);
  for (int64_t load : memory.loads) {
    h.cost_total += uint64_t(load);
    h.cost_max = max_of(h.cost_max, uint64_t(load));
  }
  if (memory.partials.empty()) return;
  place_partials(memory, layout, out);
  if (work.levels || work.scattered) {
    emit_units_by_row(rules, list, work, h.total_tokens, layout, memory, out);
  } else {
    emit_units_by_tile(rules, list, layout, memory, out);
  }
}

}  // namespace kvloom::plan
