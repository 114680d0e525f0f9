// What the planner is told about the machine it plans for. Integers only: the same input gives the same bytes on every platform.
#pragma once

#include "kvloom/contract/plan_format.h"

namespace kvloom {

enum class LevelMode : int32_t {
  off = 0,        // only explicit groups
  automatic = 1,  // shared prefixes are found from the page tables and taken where the cost model says that they pay
};

/// Costs are in one unit, by convention nanoseconds of one CTA; only ratios matter.
struct SchedulerConfig {
  int32_t num_ctas = 1;
  Policy policy = Policy::automatic;
  LevelMode levels = LevelMode::automatic;
  int32_t split_tokens = 256;        // fixed_split: chunk length, a multiple of tile_kv of class 0
  bool classes_agree = false;        // fixed_split: kernels of both classes give a row the same bits; else all items are of class 0
  int32_t compute_rows_above = 16;   // groups with more packed rows a KV head than this are compute class (1), else memory class (0)
  KernelClass classes[2];            // [0] memory, [1] compute
  int64_t cost_partial = 650;        // write one partial and tell the others
  int64_t cost_partial_row = 8;      // ... a row of it
  int64_t cost_merge = 1000;         // merge one unit
  int64_t snap_memory = 1000;        // a cut of the memory class moves up to this far to avoid a sliver
  int64_t snap_compute = 2500;
  int64_t keep_whole_margin = 2000;  // whole units are kept where they cost at most this much more than the stream
  int32_t saturating_ctas = 0;       // CTAs share a memory that so many saturate: units that are all alike stay whole if as many have the most (0: never)
  int64_t fill_from = 0;             // automatic: mean cost of a CTA from which steps of both classes are overlapped (fill) instead of cut little (heap)
  int64_t cost_shared = 0;           // fill, steps of both classes: what an item of many rows of a shared level costs besides: it has a merge with every request below it
  int64_t level_first_gain = 2000;   // (n - 1) x tokens that the first shared level must save, summed over its groups
  int32_t level_first_percent = 0;   // ... and so much of what the step costs, in tokens read by few rows
  int64_t level_more_gain = 250;     // ... that any further group must save by itself
  int64_t level_reader_gain = 0;     // ... and the first group above a request besides, a request: its own item is a partial then, and merged
  bool levels_beside_many = true;    // automatic ones in steps with requests of more than compute_rows_above packed rows, too
  int32_t cost_level_item = 0;       // steps with levels, all of class 0: an item more, since short ones are waited for, and all are partial
};

}  // namespace kvloom
