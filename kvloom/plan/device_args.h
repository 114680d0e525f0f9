// What the device's planner is launched with, and what it says of a batch that it refuses.
#pragma once

#include "kvloom/base/fast_divide.h"
#include "kvloom/contract/batch.h"
#include "kvloom/contract/variant.h"
#include "kvloom/plan/cost.h"
#include "kvloom/plan/tile_shape.h"

namespace kvloom::plan {

/// Most CTAs that the device's planner plans for: what its shared memory has room for.
inline constexpr int32_t kMaxPlannedCtas = 512;
/// Bytes of shared memory for its tables of groups and tiles; where a step may have more, they lie in device memory.
inline constexpr int32_t kPlanTableBytes = 56 * 1024;
/// Most lists of a step whose groups and tiles are made in one pass.
inline constexpr int32_t kMaxOneTile = 1 << 15;

/// A group of the step, as the tiles of it are made from.
struct PlannedGroup {
  int32_t first_tile;
  int32_t token_begin, token_count;
  int32_t kv_len;
  int32_t q_pos0;
  int32_t prefix;
};
/// A tile of the step, in the order of the line.
struct alignas(16) PlannedTile {
  int32_t group;  // these four as an item has them
  int32_t row_begin;
  int32_t kv_begin, kv_end;
  int64_t position;  // where its first run begins
  int32_t first_unit;
  uint16_t row_count;
  uint16_t kernel_class;
};

/// What is wrong with a batch. Faults of requests in the order in which they are looked for.
enum class PlanFault : int32_t {
  none = 0,
  first_token,   // qo_indptr[0] is not 0
  token_order,   // qo_indptr decreases
  query_tokens,  // more query tokens than rows
  query_length,  // a request has more query tokens than was said
  kv_length,     // kv_len below 0, or too large
  list_begin,    // list_indptr below 0
  list_order,    // list_indptr decreases
  list_length,   // the list, or the row of the table, is too short for kv_len
  list_end,      // the list ends behind the last entry of `pages`
  position,      // q_pos0
  prefix,
  kv_tokens,     // of all requests: more than Capacity::max_kv_tokens
  cost,          // of the step: larger than can be planned
};

/// The first fault of a batch (requests ascending), where status says that there is one.
struct PlanVerdict {
  PlanFault fault;
  int32_t request;
  int32_t kv_head;  // lists a KV head: whose; else -1
  int32_t reserved;
  int64_t got;
  int64_t wanted;  // the bound that was broken
};

/// Pointers are the device's.
struct DeviceArgs {
  // The step.
  IndexView qo_indptr;   // [num_requests + 1]
  IndexView kv_len;      // [lists]
  IndexView list_indptr; // [lists] or [lists + 1]; not given with table_stride
  int64_t table_stride = 0;
  int64_t num_entries = 0;  // of `pages`; ragged: tokens of K and V
  const int32_t* q_pos0 = nullptr;
  const int32_t* prefix = nullptr;
  KvPosition kv_position = KvPosition::linear;
  int32_t num_requests = 0;
  int32_t request_lists = 1;  // lists of a request: one, or one a KV head ...
  bool per_head = false;      // ... which this says (there may be one head)
  int32_t max_q_len = 0;      // of a request
  int32_t max_tiles = 0;      // that a step of so many tokens in so many requests may have
  int32_t num_tokens = 0;     // rows of Q and O
  int64_t max_kv_tokens = 0;  // of all requests, the mean of the heads; 0: not bounded
  // What is fixed.
  int32_t group_size = 1;
  int32_t num_kv_heads = 1;
  int32_t page_size = 1;  // ragged: 1
  int32_t compute_rows_above = 0;
  KeyRange range;
  TileShape shape[2];  // of the classes
  HeadRuns runs[2] = {};
  FastDivide unit_runs;  // of class 0: where both classes have as many, a unit's number over it is the tile's
  FastDivide shares;     // by the number of CTAs
  bool one_tile = false;  // requests are a tile of class 0 each, whose cost depends on its keys alone, as of decode steps; then
  RunCost one_tile_cost[2] = {};  // of a run without keys, and of the last
  int64_t snap[2] = {0, 0};
  int64_t keep_whole_margin = 0;
  int32_t saturating_ctas = 0;
  uint64_t graph_keys[4] = {};  // of steps by their classes: bit 0: some items are of class 0; bit 1: of class 1
  PlanHeader header = {};       // but for what depends on the step
  // Where things are.
  void* plan = nullptr;
  uint32_t* counters = nullptr;  // made zero, one a merge unit
  CtaStart* starts = nullptr;    // said to be unknown; nullptr: there are none
  PlanVerdict* verdict = nullptr;
  char* tables = nullptr;  // nullptr: shared memory; else of plan_table_bytes()
};

/// Bytes of the tables of a step with that many lists and tiles: tiles first, groups behind them.
KVLOOM_HD constexpr int64_t plan_table_bytes(int64_t lists, int64_t tiles) {
  return tiles * int64_t(sizeof(PlannedTile)) + lists * int64_t(sizeof(PlannedGroup));
}
KVLOOM_HD constexpr int64_t plan_table_bytes(const DeviceArgs& a) { return plan_table_bytes(int64_t(a.num_requests) * a.request_lists, a.max_tiles); }

}  // namespace kvloom::plan
