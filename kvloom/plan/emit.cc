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

void count_items(const Work& work, const Schedule& schedule, EmitMemory& memory, PlanSections& out) {
  const int32_t ctas = out.header->num_ctas;
  memory.bucket.assign(3 * size_t(ctas) + 1, 0);
  for (const Piece& p : schedule.pieces) ++memory.bucket[bucket_of(work.tiles[p.tile], p.cta, schedule.order) + 1];
  for (int32_t b = 0; b < 3 * ctas; ++b) {
    if (b % 3 == 0) out.cta_indptr[b / 3] = memory.bucket[b];
    memory.bucket[b + 1] += memory.bucket[b];
  }
  out.cta_indptr[ctas] = memory.bucket[3 * ctas];
}

void write_items(const Work& work, const Schedule& schedule, EmitMemory& memory, PlanSections& out) {
  const bool fixed = out.header->split_tokens > 0;
  memory.loads.assign(out.header->num_ctas, 0);
  memory.partials.clear();
  for (const Piece& p : schedule.pieces) {
    const Tile& t = work.tiles[p.tile];
    const int32_t at = memory.bucket[bucket_of(t, p.cta, schedule.order)]++;
    WorkItem& item = out.items[at];
    item.group = t.group;
    item.row_begin = t.row_begin;
    item.kv_begin = p.kv_begin;
    item.kv_end = p.kv_end;
    item.partial_row = -1;
    item.touch_begin = 0;
    item.row_count = uint16_t(t.row_count);
    item.touch_count = 0;
    item.kv_head = uint16_t(t.kv_head + p.run * t.heads);
    item.kv_head_count = uint8_t(run_heads(t, p.run));
    item.kernel_class = t.kernel_class;
    item.chunked = fixed && p.kv_begin > t.kv_begin;
    memory.loads[p.cta] += run_cost(t, p.run, int64_t(p.kv_end) - p.kv_begin);
    if (t.several || !is_whole(t, p)) memory.partials.push_back({t.first_unit + p.run, p.kv_begin, at});
  }
}

/// Gives every partial item its scratch rows, units in order and each unit's items by their keys.
void place_partials(EmitMemory& memory, const PlanLayout& layout, PlanSections& out) {
  std::sort(memory.partials.begin(), memory.partials.end(),
            [](const PartialItem& a, const PartialItem& b) { return a.unit != b.unit ? a.unit < b.unit : a.kv_begin < b.kv_begin; });
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
  check_room("work items", int64_t(schedule.pieces.size()), layout.max_items);
  h.num_items = int32_t(schedule.pieces.size());
  count_items(work, schedule, memory, out);
  write_items(work, schedule, memory, out);
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
