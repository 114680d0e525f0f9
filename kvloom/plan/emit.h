// From pieces to the plan's sections: items by CTA, partial rows, merge units, entries and touches.
#pragma once

#include "kvloom/plan/planner.h"
#include "kvloom/plan/policy.h"

#include <vector>

namespace kvloom::plan {

/// A query token in a group: which, and where in it.
struct Cover {
  int32_t group;
  int32_t index;
};

/// A partial item of a unit, while units are built.
struct PartialItem {
  int32_t unit;
  int32_t kv_begin;
  int32_t item;
};

/// A unit of a stream that is cut: its parts are `parts` items from `item` on.
struct CutUnit {
  int32_t item;
  int32_t parts;
};

/// Where a row lies in one of the units of work that cover it.
struct RowSource {
  int32_t unit;
  int32_t offset;  // row within the tile
};

/// A row's place in a tile.
struct RowTile {
  const Tile* tile;
  int32_t offset;
};

/// Rows that share their tiles.
struct RowRun {
  int32_t row;  // the first: token * group size + row within the token
  int32_t rows;
  int32_t tiles_end;  // of EmitMemory::row_tiles; they begin where those of the run before end
};

struct EmitMemory {
  std::vector<int32_t> bucket;          // [3 * CTAs + 1]
  std::vector<PartialItem> partials;    // by (unit, kv begin)
  std::vector<PartialItem> unsorted;    // as they come
  std::vector<CutUnit> cut_units;
  std::vector<int32_t> unit_partial;    // [units + 1] first PartialItem; one more while they are put in order
  std::vector<int32_t> cover_begin;     // [tokens + 1]
  std::vector<Cover> covers;            // by (token, group)
  std::vector<int32_t> head_stamp;      // [KV heads]
  std::vector<int32_t> slice;           // first heads of head slices, and the number of heads
  std::vector<int32_t> entry_item;      // [entries] the item that writes it
  std::vector<RowTile> row_tiles;
  std::vector<RowRun> row_runs;
  std::vector<RowSource> row_sources;   // of the rows at hand
  std::vector<RowSource> open_sources;  // of the unit that may grow
  std::vector<int64_t> loads;           // [CTAs]
};

/// The typed sections of a buffer that is being written. Items, units and so on are counted in the header.
struct PlanSections {
  PlanHeader* header;
  RowGroup* groups;
  RowEntry* row_entries;
  int32_t* cta_indptr;
  WorkItem* items;
  MergeUnit* units;
  MergeEntry* entries;
  int32_t* touches;
};

/// Throws Error(internal): a bound of the layout was broken, so its proof is wrong, not the caller's batch.
void check_room(const char* what, int64_t used, int64_t room);

/// Which group covers which token: `memory.covers`, in level order.
void index_covers(const GroupList& list, int32_t total_tokens, EmitMemory& memory);

/// Where rows are in several groups: marks their tiles (Tile::several, and Tile::pinned under fixed_split), and takes out tiles that see no
/// keys and whose rows are covered by others. Needs index_covers().
void resolve_overlaps(const TileRules& rules, const GroupList& list, Work& work, EmitMemory& memory);

/// Writes items, units, entries, touches, cta_indptr and their counts and costs.
void emit(const TileRules& rules, const GroupList& list, const Work& work, const Schedule& schedule, const PlanLayout& layout,
          EmitMemory& memory, PlanSections out);

/// The same of a stream, whose tiles have consecutive tokens and lie in one level. emit() calls it.
void emit_stream(const TileRules& rules, const GroupList& list, const Work& work, Span<const Place> cuts, const PlanLayout& layout,
                 EmitMemory& memory, PlanSections& out);

/// Builds units, entries and touches row by row, where levels or gathered tokens make a tile fall into several units. emit() calls it.
void emit_units_by_row(const TileRules& rules, const GroupList& list, const Work& work, int32_t total_tokens, const PlanLayout& layout,
                       EmitMemory& memory, PlanSections out);

}  // namespace kvloom::plan
