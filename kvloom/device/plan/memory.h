// The device's planner: policy `stream` of a flat batch, in phases that are written for a "block", so that a test runs them on the host. A few CTAs do the
// same, each by itself and none waiting for another, and share what is written: most of a plan's bytes. A block is what has
//   each(n, f)                        f(i) for all i < n, each by one thread, done when it returns
//   each_out(n, f)                    f(i) for all i < n, each by one thread of one of the CTAs: what only goes into the plan; not waited for
//   once(f)                           f() by one thread of one of the CTAs, always the same; not waited for
//   writes(i)                         whether this CTA is the one that writes element i
//   two_steps<State>(n, read, write)  read(i, state), and when all have read, write(i, state); n <= plan::kMaxPlannedCtas
//   settle<State>(n, step)            step(i, state, round) for rounds 0, 1, ... until one behind 0 returns false for all; n <= plan::kMaxPlannedCtas
//   scan<State>(n, load, store)       store(i, state, sum of load(j, state) over j < i); returns the sum of all. Sums are Sum, or uint64_t
//   scan_most<State>(n, mine, load, store)          the same, and then mine is as of most(); load may still change it
//   scan_most<State>(n, mine, totals, load, store)  the same, and totals are summed up: two numbers of 32 bits
//   most(mine)                        each of an array's numbers, the largest that a thread has
//   any(mine)                         true if it is for some thread
//   sort(keys, n)                     ascending, no two the same; the array has room up to the next power of two, 64 at least
//   put(to, x)                        a struct of multiples of 16 bytes into the plan
// and what threads keep between phases lies in this file's structs, in shared memory.
#pragma once

#include "kvloom/attn/tile_range.h"
#include "kvloom/plan/device_args.h"
#include "kvloom/plan/cost.h"
#include "kvloom/plan/cuts.h"
#include "kvloom/plan/flat.h"
#include "kvloom/plan/tile_shape.h"
#include "kvloom/plan/whole.h"

namespace kvloom::device_plan {

inline constexpr int32_t kMaxWhole = max_of(plan::kWholeUnitsPerCta * plan::kMaxPlannedCtas, plan::kMostWholeUnits);  // units that are tried as wholes

inline constexpr int64_t kNever = 0x7fffffffffffffff;
inline constexpr int32_t kNone = 0x7fffffff;

/// What scan() adds up: two counts and a number. One type for all sums keeps the planner's code short, and most of the time of a kernel that
/// runs through its code once goes into fetching it. Counts never sum up to 2^32, so none carries into its neighbour.
struct Sum {
  uint64_t counts = 0;
  int64_t number = 0;

  KVLOOM_HD static Sum of(int32_t first, int32_t second, int64_t number) { return {uint32_t(first) | uint64_t(uint32_t(second)) << 32, number}; }
  KVLOOM_HD int32_t first() const { return int32_t(uint32_t(counts)); }
  KVLOOM_HD int32_t second() const { return int32_t(counts >> 32); }
  KVLOOM_HD Sum operator+(const Sum& o) const { return {counts + o.counts, number + o.number}; }
  KVLOOM_HD Sum operator-(const Sum& o) const { return {counts - o.counts, number - o.number}; }
};

/// A place where the line of units is cut.
struct alignas(16) Cut {
  int64_t position;
  int32_t tokens;  // of the unit that lie before it: none in the gap before the unit
  int32_t unit;    // number of units: at the end of the line

  KVLOOM_HD bool inside() const { return tokens > 0; }
  KVLOOM_HD int64_t place() const { return int64_t(unit) << 32 | tokens; }
  KVLOOM_HD bool is(const Cut& other) const { return place() == other.place(); }
};
/// The part of a unit that begins at a cut inside it.
struct Part {
  int32_t merge_unit;
  int32_t touch;
  int32_t row;  // of the scratch
};

inline constexpr int32_t kCutsOfRound = plan::kMaxPlannedCtas + 1;
/// Of a line that is cut.
struct CutMemory {
  Cut cut[2 * kCutsOfRound];  // CTA c has the line from cut[c] to cut[c + 1]; behind them, while they are looked for: those of every second round
  int32_t item[plan::kMaxPlannedCtas + 1];  // first of a CTA
  Part part[plan::kMaxPlannedCtas];
  int32_t unit_touch[plan::kMaxPlannedCtas + 1];  // of a merge unit: its first
  int32_t unit_cut[plan::kMaxPlannedCtas];        // ... and the first cut inside it
};
/// Of an assignment of whole units, longest first. Kinds are units of one tile that cost the same; by rank: in the order in which they are given.
struct WholeMemory {
  uint64_t kind[kMaxWhole];       // dearest first: kMaxStepCost - cost above kKindBits, index below
  int32_t first_rank[kMaxWhole];  // of a kind
  uint64_t load[plan::kMaxPlannedCtas];  // ascending: load above kCtaBits, CTA below
  int32_t units[plan::kMaxPlannedCtas];  // that a CTA has
  int32_t first_item[plan::kMaxPlannedCtas];
  uint16_t cta[kMaxWhole];    // by rank
  uint16_t place[kMaxWhole];  // by rank: among the CTA's
};

struct Memory {
  union {
    CutMemory cuts;
    WholeMemory whole;
  };
};

/// Costs and sizes of a step, known to all threads.
struct Totals {
  int32_t groups = 0;
  int32_t tiles = 0;
  int32_t units = 0;
  int32_t class_units[2] = {0, 0};
  int32_t max_rows[2] = {0, 0};  // of a tile of a class
  int64_t cost = 0;
  int64_t max_unit_cost = 0;
  int64_t min_unit_cost = kNever;
};

/// What threads look at all the time. kOneTile: of a step of DeviceArgs::one_tile, whose tables lie in shared memory; compilers then know both.
template <bool kOneTile>
struct StepOf {
  static constexpr bool kOneTileEach = kOneTile;
  const plan::DeviceArgs& args;
  Memory& memory;
  plan::PlannedTile* const tiles;
  plan::PlannedGroup* const groups;

  /// `tables`: of plan::plan_table_bytes().
  KVLOOM_HD StepOf(const plan::DeviceArgs& a, Memory& m, char* tables)
      : args(a),
        memory(m),
        tiles(reinterpret_cast<plan::PlannedTile*>(tables)),
        groups(reinterpret_cast<plan::PlannedGroup*>(tables + a.max_tiles * int64_t(sizeof(plan::PlannedTile)))) {}

  KVLOOM_HD const plan::TileShape& shape(int32_t c) const { return args.shape[c]; }
  KVLOOM_HD const plan::HeadRuns& runs(int32_t c) const { return args.runs[c]; }
  KVLOOM_HD const KernelClass& kernel_class(int32_t c) const { return args.header.classes[c]; }
  KVLOOM_HD int32_t class_of(int32_t tokens) const { return plan::class_of_tokens(tokens, args.group_size, args.compute_rows_above); }
  KVLOOM_HD int32_t num_ctas() const { return args.header.num_ctas; }

  KVLOOM_HD static int32_t class_of(const plan::PlannedTile& t) { return kOneTile ? 0 : t.kernel_class; }
  KVLOOM_HD int32_t heads_of(const plan::PlannedTile& t, int32_t run) const {
    const plan::HeadRuns& r = runs(class_of(t));
    return run + 1 == r.runs ? r.last_heads : r.heads;
  }
  KVLOOM_HD plan::RunCost run_cost(const plan::PlannedTile& t, int32_t run) const {
    if constexpr (kOneTile) {
      const plan::RunCost& c = args.one_tile_cost[run + 1 == runs(0).runs ? 1 : 0];
      return {c.fixed + c.token * (t.kv_end - t.kv_begin), c.fixed, c.token};
    }
    return plan::run_cost_of(kernel_class(class_of(t)), t.row_count, t.kv_end - t.kv_begin, heads_of(t, run));
  }

  /// First KV head of a run.
  KVLOOM_HD int32_t kv_head_of(const plan::PlannedTile& t, int32_t run) const {
    return args.per_head ? t.group % args.request_lists : run * runs(class_of(t)).heads;  // a request's groups lie head by head
  }

  template <class T>
  KVLOOM_HD T* section(int64_t offset) const { return reinterpret_cast<T*>(static_cast<char*>(args.plan) + offset); }
  KVLOOM_HD PlanHeader* header() const { return section<PlanHeader>(0); }
  KVLOOM_HD RowGroup* row_groups() const { return section<RowGroup>(args.header.groups_offset); }
  KVLOOM_HD int32_t* cta_indptr() const { return section<int32_t>(args.header.cta_indptr_offset); }
  KVLOOM_HD WorkItem* items() const { return section<WorkItem>(args.header.items_offset); }
  KVLOOM_HD MergeUnit* units() const { return section<MergeUnit>(args.header.units_offset); }
  KVLOOM_HD MergeEntry* entries() const { return section<MergeEntry>(args.header.entries_offset); }
  KVLOOM_HD int32_t* touches() const { return section<int32_t>(args.header.touches_offset); }

  /// The item of a run of a tile, with all of its keys, final.
  KVLOOM_HD WorkItem whole_item(const plan::PlannedTile& t, int32_t run) const {
    WorkItem item{};
    item.group = t.group;
    item.row_begin = t.row_begin;
    item.kv_begin = t.kv_begin;
    item.kv_end = t.kv_end;
    item.partial_row = -1;
    item.row_count = t.row_count;
    item.kv_head = uint16_t(kv_head_of(t, run));
    item.kv_head_count = uint8_t(heads_of(t, run));
    item.kernel_class = uint8_t(class_of(t));
    return item;
  }
};

/// Index of the last of `n` >= 1 elements for which `before` holds, where it holds for the first, and for none behind one for which it doesn't.
template <class Before>
KVLOOM_HD int32_t last_of(int32_t n, Before before) {
  int32_t low = 0, high = n;  // holds for low, not for high
  while (high - low > 1) {
    const int32_t middle = (low + high) >> 1;
    if (before(middle)) low = middle;
    else high = middle;
  }
  return low;
}

}  // namespace kvloom::device_plan
