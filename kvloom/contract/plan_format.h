// The plan: one flat buffer of fixed-offset sections that kernels only read. docs/plan_format.md says who writes, reads and owns what.
#pragma once

#include "kvloom/base/span.h"
#include "kvloom/contract/batch.h"

namespace kvloom {

inline constexpr uint32_t kPlanMagic = 0x4c56504bu;  // "KPVL"
inline constexpr uint32_t kPlanVersion = 1;

enum class Policy : int32_t { none = 0, heap = 1, stream = 2, fill = 3, fixed_split = 4, automatic = 5 };  // docs/plan_format.md
inline constexpr int32_t kNumPolicies = 6;

/// The spelling used in explanations, reports and the command line.
constexpr const char* name_of(Policy p) {
  switch (p) {
    case Policy::none: return "none";
    case Policy::heap: return "heap";
    case Policy::stream: return "stream";
    case Policy::fill: return "fill";
    case Policy::fixed_split: return "fixed_split";
    case Policy::automatic: return "auto";
  }
  return "unknown";
}

/// Other than ok: a device made it of a batch that can't be planned. It has no items; run() makes rows [0, total_tokens) NaN.
enum class PlanStatus : int32_t { ok = 0, over_capacity = 1, malformed = 2 };

/// Query tokens that attend to one list of KV blocks: one block row of the sparse matrix. 64 bytes.
struct RowGroup {
  int64_t list_begin;   // first entry of the caller's `pages` (ragged: first token)
  int32_t row_list;     // -1: tokens are consecutive; else first RowEntry
  int32_t token_begin;  // first query token (row of Q); consecutive groups only
  int32_t token_count;
  int32_t request;      // consecutive groups only
  int32_t q_index0;     // index of the first token within its request
  int32_t q_pos0;       // position of the first token
  int32_t kv_begin;     // tokens of the list that count: [kv_begin, kv_end)
  int32_t kv_end;
  int32_t kv_pos0;
  int32_t kv_index0;
  int32_t kv_head;      // -1: every KV head
  int32_t level;        // 0 is the longest shared prefix side; the last level is the requests' own part
  int32_t prefix;       // consecutive groups only
  KvPosition kv_position;
};
static_assert(sizeof(RowGroup) == 64);

/// One gathered query token of a group whose tokens are not consecutive (or carry positions of their own).
struct RowEntry {
  int32_t token;
  int32_t request;
  int32_t q_index;
  int32_t q_pos;
  int32_t prefix;
};

/// What one CTA does before it goes to its next item: a tile of packed rows against a range of keys. 32 bytes.
/// Packed row p of a group = (token p / group_size, head kv_head * group_size + p % group_size).
struct WorkItem {
  int32_t group;
  int32_t row_begin;      // first packed row within the group
  int32_t kv_begin;       // tokens of the group's list
  int32_t kv_end;
  int32_t partial_row;    // scratch row of (row_begin, kv_head); -1: every row is final and goes to the output
  int32_t touch_begin;    // first of `touch_count` entries in `touches`: the merge units this item contributes to
  uint16_t row_count;     // packed rows
  uint16_t touch_count;
  uint16_t kv_head;       // first KV head
  uint8_t kv_head_count;  // neighbouring heads done by this item; head h's partial starts at partial_row + (h - kv_head) * row_count
  uint8_t kernel_class : 4;  // index into PlanHeader::classes
  uint8_t chunked : 4;    // fixed_split: 1: one partial a chunk of split_tokens (see item_partials); 0: its chunks are folded into one
};
static_assert(sizeof(WorkItem) == 32);
inline constexpr int32_t kMaxHeadsPerItem = 255;   // WorkItem::kv_head_count
inline constexpr int32_t kMaxRowsPerItem = 65535;  // packed rows times heads: WorkItem::touch_count is a unit a row at most

/// The largest set of output rows whose list of partials is the same. Rows are global packed rows: token * group_size + head in group.
struct MergeUnit {
  int32_t row_begin;
  int32_t row_count;
  int32_t kv_head;
  int32_t kv_head_count;
  int32_t entry_begin;  // in `entries`, in merge order: (level, kv begin); one entry a partial
  int32_t entry_count;
  int32_t arrivals;     // items that touch the unit: the last of so many merges it (fewer than entries where items are `chunked`)
};

/// Where one partial of a unit lies: scratch row of the unit's first row for its first head, and the distance between its heads.
struct MergeEntry {
  int32_t partial_row;
  int32_t head_stride;  // scratch rows from head h to head h + 1 (the row_count of the item that wrote it)
};

/// Tile shape and cost of one kind of work; a plan may mix two (memory class: short query side; compute class: the rest).
struct KernelClass {
  int32_t tile_rows = 16;        // packed rows an item may have
  int32_t tile_kv = 64;          // chunk boundaries are multiples of this, counted from list token 0
  int32_t heads_per_item = 1;    // neighbouring KV heads an item takes together
  int32_t cost_per_token = 1;    // of reading and computing one key for one tile and one head
  int32_t cost_per_tile_row = 0; // the paper's alpha: cost of a row, whatever the keys
  int32_t cost_per_item = 0;     // fixed cost of an item
};

struct PlanHeader {
  uint32_t magic;
  uint32_t version;
  PlanStatus status;
  Policy policy;             // never `automatic`: what was chosen
  int32_t num_ctas;
  int32_t num_groups;
  int32_t num_row_entries;
  int32_t num_items;
  int32_t num_units;
  int32_t num_entries;
  int32_t num_touches;
  int32_t num_levels;
  int32_t scratch_rows;      // used by this step
  int32_t split_tokens;      // fixed_split: chunk length; items fold chunk by chunk and write a partial a chunk. 0: none
  int32_t total_tokens;      // query tokens of the step
  int32_t chunk_cap;         // heap: longest chunk, in tokens (of class 1 where the step has no class 0 work); 0 elsewhere
  uint64_t graph_key;        // kernel classes and level shape: what a captured graph must match, besides the kernel that runs the plan
  uint64_t cost_total;       // of all items
  uint64_t cost_max;         // of the most loaded CTA
  KernelClass classes[2];
  // Byte offsets from the start of the buffer; they depend on the capacity only.
  int64_t groups_offset;
  int64_t row_entries_offset;
  int64_t cta_indptr_offset;  // int32 [num_ctas + 1]: items of CTA c are [cta_indptr[c], cta_indptr[c + 1])
  int64_t items_offset;
  int64_t units_offset;
  int64_t entries_offset;
  int64_t touches_offset;     // int32
  int64_t total_bytes;
};

/// The sections of a plan buffer, typed.
struct PlanView {
  const PlanHeader* header = nullptr;
  Span<const RowGroup> groups;
  Span<const RowEntry> row_entries;
  Span<const int32_t> cta_indptr;
  Span<const WorkItem> items;
  Span<const MergeUnit> units;
  Span<const MergeEntry> entries;
  Span<const int32_t> touches;
};

/// Views over `buffer`, which holds a plan written by this version. No checks: see plan/validate.h.
KVLOOM_HD PlanView view_plan(const void* buffer) {
  const char* base = static_cast<const char*>(buffer);
  const auto* h = reinterpret_cast<const PlanHeader*>(base);
  PlanView v;
  v.header = h;
  v.groups = {reinterpret_cast<const RowGroup*>(base + h->groups_offset), h->num_groups};
  v.row_entries = {reinterpret_cast<const RowEntry*>(base + h->row_entries_offset), h->num_row_entries};
  v.cta_indptr = {reinterpret_cast<const int32_t*>(base + h->cta_indptr_offset), h->num_ctas + 1};
  v.items = {reinterpret_cast<const WorkItem*>(base + h->items_offset), h->num_items};
  v.units = {reinterpret_cast<const MergeUnit*>(base + h->units_offset), h->num_units};
  v.entries = {reinterpret_cast<const MergeEntry*>(base + h->entries_offset), h->num_entries};
  v.touches = {reinterpret_cast<const int32_t*>(base + h->touches_offset), h->num_touches};
  return v;
}

/// What a CTA begins with, for kernels to find in one read, without the plan's header: beside a plan on a device, not part of it. A line of memory.
struct alignas(128) CtaStart {
  WorkItem item;   // the first
  RowGroup group;  // of that
  int32_t items;   // that the CTA has; -1: not known, and nothing else is: the plan says it
  int32_t reserved[7];
};
static_assert(sizeof(CtaStart) == 128);

KVLOOM_HD CtaStart cta_start(const PlanView& plan, int32_t cta) {
  CtaStart s{};
  const int32_t first = plan.cta_indptr[cta];
  s.items = plan.cta_indptr[cta + 1] - first;
  if (s.items > 0) s.item = plan.items[first], s.group = plan.groups[s.item.group];
  return s;
}

/// The query token at index i of a group, and where it stands.
KVLOOM_HD RowEntry row_of(const PlanView& plan, const RowGroup& g, int32_t i) {
  if (g.row_list >= 0) return plan.row_entries[g.row_list + i];
  return RowEntry{g.token_begin + i, g.request, g.q_index0 + i, g.q_pos0 + i, g.prefix};
}

/// Partials that a partial item writes for each of its rows and heads. Chunks of split_tokens are counted from list token 0; chunk i of a
/// `chunked` item goes to scratch rows partial_row + i * row_count * kv_head_count.
KVLOOM_HD int32_t item_partials(const PlanHeader& h, const WorkItem& item) {
  if (!item.chunked || item.kv_end <= item.kv_begin) return 1;
  return (item.kv_end - 1) / h.split_tokens - item.kv_begin / h.split_tokens + 1;
}

/// Working memory of a launch, one per stream. Contents need not survive between steps; `counters` are all zero between launches.
struct Scratch {
  float* partial_o = nullptr;      // [scratch_rows, head_dim_vo], normalised
  float* partial_lse = nullptr;    // [scratch_rows], natural log; room for twice as many under fixed_split (device/block/fold.cuh)
  uint32_t* counters = nullptr;    // [num_units] arrivals; the last arriver resets its own to zero
  void* thread_arena = nullptr;    // CPU: one block a thread
  int64_t thread_arena_bytes = 0;  // of one block
};

}  // namespace kvloom
