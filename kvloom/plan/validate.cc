#include "kvloom/plan/validate.h"

#include "kvloom/plan/validate_checks.h"

#include <algorithm>
#include <limits>

namespace kvloom::plan {
namespace {

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();

struct Section {
  const char* name;
  int64_t offset;
  int64_t count;
  int64_t size;   // bytes of an element
  int64_t align;  // of an element
};

std::string check_sections(const PlanHeader& h) {
  Section sections[] = {
      {"groups", h.groups_offset, h.num_groups, sizeof(RowGroup), alignof(RowGroup)},
      {"row_entries", h.row_entries_offset, h.num_row_entries, sizeof(RowEntry), alignof(RowEntry)},
      {"cta_indptr", h.cta_indptr_offset, int64_t(h.num_ctas) + 1, sizeof(int32_t), alignof(int32_t)},
      {"items", h.items_offset, h.num_items, sizeof(WorkItem), alignof(WorkItem)},
      {"units", h.units_offset, h.num_units, sizeof(MergeUnit), alignof(MergeUnit)},
      {"entries", h.entries_offset, h.num_entries, sizeof(MergeEntry), alignof(MergeEntry)},
      {"touches", h.touches_offset, h.num_touches, sizeof(int32_t), alignof(int32_t)},
  };
  for (const Section& s : sections) {
    if (s.count < 0) return fault("header: number of {}: got {}, wanted >= 0", s.name, s.count);
    if (s.offset < int64_t(sizeof(PlanHeader)) || s.offset % s.align != 0) {
      return fault("header: {}_offset: got {}, wanted a multiple of {} past the header's {} bytes", s.name, s.offset, s.align,
                   sizeof(PlanHeader));
    }
    if (s.offset > h.total_bytes || s.count > (h.total_bytes - s.offset) / s.size) {
      return fault("header: {}: {} of {} bytes at offset {} leave the plan's {} bytes", s.name, s.count, s.size, s.offset, h.total_bytes);
    }
  }
  std::sort(std::begin(sections), std::end(sections), [](const Section& a, const Section& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.count * a.size < b.count * b.size;
  });
  for (size_t i = 1; i < std::size(sections); ++i) {
    const Section& a = sections[i - 1];
    if (a.offset + a.count * a.size > sections[i].offset) {
      return fault("header: sections {} and {} overlap at offset {}", a.name, sections[i].name, sections[i].offset);
    }
  }
  return {};
}

std::string check_classes(const PlanHeader& h) {
  for (int i = 0; i < 2; ++i) {
    const KernelClass& c = h.classes[i];
    if (c.tile_rows < 1 || c.tile_kv < 1 || c.heads_per_item < 1 || c.cost_per_token < 0 || c.cost_per_tile_row < 0 ||
        c.cost_per_item < 0) {
      return fault(
          "header: classes[{}]: got tile_rows {}, tile_kv {}, heads_per_item {}, costs {}, {}, {}; wanted tiles and heads >= 1, costs >= 0",
          i, c.tile_rows, c.tile_kv, c.heads_per_item, c.cost_per_token, c.cost_per_tile_row, c.cost_per_item);
    }
  }
  return {};
}

std::string check_row_entries(const Subject& s) {
  for (int64_t i = 0; i < s.plan.row_entries.size; ++i) {
    const RowEntry& e = s.plan.row_entries[i];
    if (e.token < 0 || e.token >= s.header().total_tokens) {
      return fault("row entry {}: token: got {}, wanted 0 .. {}", i, e.token, s.header().total_tokens - 1);
    }
    if (e.request < 0 || e.q_index < 0) return fault("row entry {}: request {}, q_index {}: wanted both >= 0", i, e.request, e.q_index);
  }
  return {};
}

std::string check_group_rows(const Subject& s, int64_t i, const RowGroup& g) {
  if (g.token_count < 0) return fault("group {}: token_count: got {}, wanted >= 0", i, g.token_count);
  if (g.row_list < -1) return fault("group {}: row_list: got {}, wanted >= -1", i, g.row_list);
  if (g.row_list >= 0) {
    if (int64_t(g.row_list) + g.token_count > s.plan.row_entries.size) {
      return fault("group {}: row entries {} + {}: the plan has {}", i, g.row_list, g.token_count, s.plan.row_entries.size);
    }
    return {};
  }
  if (g.token_begin < 0 || int64_t(g.token_begin) + g.token_count > s.header().total_tokens) {
    return fault("group {}: tokens {} + {}: the step has {}", i, g.token_begin, g.token_count, s.header().total_tokens);
  }
  if (g.request < 0 || g.q_index0 < 0 || int64_t(g.q_index0) + g.token_count > kInt32Max || int64_t(g.q_pos0) + g.token_count > kInt32Max) {
    return fault("group {}: request {}, q_index0 {}, q_pos0 {} with {} tokens: wanted request and index >= 0, sums below 2^31", i,
                 g.request, g.q_index0, g.q_pos0, g.token_count);
  }
  return {};
}

std::string check_item(const Subject& s, int64_t i, const WorkItem& item) {
  const PlanHeader& h = s.header();
  if (item.group < 0 || item.group >= h.num_groups) return fault("item {}: group: got {}, wanted 0 .. {}", i, item.group, h.num_groups - 1);
  if (item.kernel_class > 1) return fault("item {}: kernel_class: got {}, wanted 0 or 1", i, item.kernel_class);
  const RowGroup& g = s.plan.groups[item.group];
  const KernelClass& c = h.classes[item.kernel_class];
  if (item.row_count < 1 || item.row_count > c.tile_rows) {
    return fault("item {}: row_count: got {}, wanted 1 .. {} (tile_rows of class {})", i, item.row_count, c.tile_rows, item.kernel_class);
  }
  if (item.row_begin < 0 || int64_t(item.row_begin) + item.row_count > s.rows_of(g)) {
    return fault("item {}: packed rows {} + {}: group {} has {}", i, item.row_begin, item.row_count, item.group, s.rows_of(g));
  }
  if (item.kv_begin < g.kv_begin || item.kv_end < item.kv_begin || item.kv_end > g.kv_end) {
    return fault("item {}: keys [{}, {}): wanted a range within [{}, {}) of group {}", i, item.kv_begin, item.kv_end, g.kv_begin, g.kv_end,
                 item.group);
  }
  if (item.kv_head_count < 1 || item.kv_head_count > c.heads_per_item || item.kv_head + item.kv_head_count > s.kv_heads) {
    return fault("item {}: KV heads {} + {}: wanted 1 .. {} of {} heads", i, item.kv_head, item.kv_head_count, c.heads_per_item,
                 s.kv_heads);
  }
  if (g.kv_head >= 0 && (item.kv_head != g.kv_head || item.kv_head_count != 1)) {
    return fault("item {}: KV heads {} + {}: group {} is for head {} only", i, item.kv_head, item.kv_head_count, item.group, g.kv_head);
  }
  if (item.chunked > 1 || (item.chunked == 1 && (h.split_tokens < 1 || item.partial_row < 0))) {
    return fault("item {}: chunked: got {} with split_tokens {} and partial_row {}, wanted 0, or 1 for partials of fixed_split", i,
                 item.chunked, h.split_tokens, item.partial_row);
  }
  if (item.partial_row < -1) return fault("item {}: partial_row: got {}, wanted >= -1", i, item.partial_row);
  if (item.partial_row >= 0) {
    const int64_t rows = int64_t(item.row_count) * item.kv_head_count * item_partials(h, item);
    if (item.partial_row + rows > h.scratch_rows) {
      return fault("item {}: scratch rows {} + {}: the plan uses {}", i, item.partial_row, rows, h.scratch_rows);
    }
  }
  if (item.touch_count > 0 && (item.touch_begin < 0 || int64_t(item.touch_begin) + item.touch_count > h.num_touches)) {
    return fault("item {}: touches {} + {}: the plan has {}", i, item.touch_begin, item.touch_count, h.num_touches);
  }
  return {};
}

}  // namespace

std::string check_header(const PlanHeader& h, int64_t buffer_bytes) {
  if (h.magic != kPlanMagic) return fault("header: magic: got {:#x}, wanted {:#x}", h.magic, kPlanMagic);
  if (h.version != kPlanVersion) return fault("header: version: got {}, wanted {}", h.version, kPlanVersion);
  if (h.status != PlanStatus::ok) return fault("header: status: got {}, wanted 0 (ok): the batch did not fit", int32_t(h.status));
  if (int32_t(h.policy) < 0 || int32_t(h.policy) >= int32_t(Policy::automatic)) {
    return fault("header: policy: got {}, wanted 0 .. {}", int32_t(h.policy), int32_t(Policy::automatic) - 1);
  }
  if (h.num_ctas < 1) return fault("header: num_ctas: got {}, wanted >= 1", h.num_ctas);
  if (h.num_levels < 0) return fault("header: num_levels: got {}, wanted >= 0", h.num_levels);
  if (h.scratch_rows < 0) return fault("header: scratch_rows: got {}, wanted >= 0", h.scratch_rows);
  if (h.split_tokens < 0) return fault("header: split_tokens: got {}, wanted >= 0", h.split_tokens);
  if (h.total_tokens < 0) return fault("header: total_tokens: got {}, wanted >= 0", h.total_tokens);
  if (h.total_bytes < int64_t(sizeof(PlanHeader)) || h.total_bytes > buffer_bytes) {
    return fault("header: total_bytes: got {}, wanted {} .. {} (the buffer)", h.total_bytes, sizeof(PlanHeader), buffer_bytes);
  }
  if (std::string e = check_classes(h); !e.empty()) return e;
  return check_sections(h);
}

std::string check_groups(const Subject& s) {
  if (int64_t(s.header().total_tokens) * s.group_size > kInt32Max) {
    return fault("header: total_tokens: got {}: packed rows ({} a token) pass 2^31", s.header().total_tokens, s.group_size);
  }
  if (std::string e = check_row_entries(s); !e.empty()) return e;
  for (int64_t i = 0; i < s.plan.groups.size; ++i) {
    const RowGroup& g = s.plan.groups[i];
    if (std::string e = check_group_rows(s, i, g); !e.empty()) return e;
    if (g.list_begin < 0) return fault("group {}: list_begin: got {}, wanted >= 0", i, g.list_begin);
    if (g.kv_begin < 0 || g.kv_end < g.kv_begin) return fault("group {}: keys [{}, {}): wanted 0 <= begin <= end", i, g.kv_begin, g.kv_end);
    const int64_t position_end = int64_t(g.kv_pos0) + g.kv_end, index_end = int64_t(g.kv_index0) + g.kv_end;
    if (position_end > kInt32Max || index_end > kInt32Max) {
      return fault("group {}: kv_pos0 {}, kv_index0 {} with kv_end {}: positions pass 2^31", i, g.kv_pos0, g.kv_index0, g.kv_end);
    }
    if (g.kv_head < -1 || g.kv_head >= s.kv_heads) return fault("group {}: kv_head: got {}, wanted -1 .. {}", i, g.kv_head, s.kv_heads - 1);
    if (g.level < 0 || g.level >= s.header().num_levels) {
      return fault("group {}: level: got {}, wanted 0 .. {}", i, g.level, s.header().num_levels - 1);
    }
    if (int32_t(g.kv_position) < 0 || int32_t(g.kv_position) > int32_t(KvPosition::page_id)) {
      return fault("group {}: kv_position: got {}, wanted 0 .. 2", i, int32_t(g.kv_position));
    }
  }
  return {};
}

std::string check_items(const Subject& s) {
  const Span<const int32_t> indptr = s.plan.cta_indptr;
  if (indptr[0] != 0) return fault("CTA lists: first bound: got {}, wanted 0", indptr[0]);
  for (int64_t c = 1; c < indptr.size; ++c) {
    if (indptr[c] < indptr[c - 1]) return fault("CTA {}: items [{}, {}): wanted ascending bounds", c - 1, indptr[c - 1], indptr[c]);
  }
  if (indptr[indptr.size - 1] != s.plan.items.size) {
    return fault("CTA lists: last bound: got {}, wanted {} (the number of items)", indptr[indptr.size - 1], s.plan.items.size);
  }
  for (int64_t i = 0; i < s.plan.items.size; ++i) {
    if (std::string e = check_item(s, i, s.plan.items[i]); !e.empty()) return e;
  }
  return {};
}

std::string validate_plan(const void* buffer, int64_t buffer_bytes, const AttentionSpec& spec, bool exhaustive) {
  if (buffer == nullptr) return "buffer: got a null pointer";
  if (reinterpret_cast<uintptr_t>(buffer) % alignof(PlanHeader) != 0) return fault("buffer: not aligned to {} bytes", alignof(PlanHeader));
  if (buffer_bytes < int64_t(sizeof(PlanHeader)))
    return fault("buffer: {} bytes do not hold a header of {}", buffer_bytes, sizeof(PlanHeader));
  if (spec.num_kv_heads < 1 || spec.num_qo_heads < 1 || spec.num_qo_heads % spec.num_kv_heads != 0) {
    return fault("spec: heads: got {} over {}, wanted a positive multiple", spec.num_qo_heads, spec.num_kv_heads);
  }
  if (std::string e = check_header(*static_cast<const PlanHeader*>(buffer), buffer_bytes); !e.empty()) return e;
  const Subject s{view_plan(buffer), spec.variant.range, spec.group_size(), spec.num_kv_heads};
  std::string e = check_groups(s);
  if (e.empty()) e = check_items(s);
  if (e.empty()) e = check_keys(s);
  if (e.empty() && exhaustive) e = check_keys_exhaustively(s);
  if (e.empty()) e = check_merges(s);
  if (e.empty()) e = check_outputs(s);
  return e;
}

}  // namespace kvloom::plan
