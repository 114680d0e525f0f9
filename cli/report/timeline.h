// A step as it was planned and as it was done: the items of the plan beside the times that a run took of them (contract/timeline.h). What pictures,
// traces and reports are made of.
#pragma once

#include "kvloom/api/engine.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace kvloom::cli {

struct PlannedItem {
  int32_t list = 0;  // the plan's CTA
  WorkItem work = {};
  int32_t request = 0;  // the first among its rows
  uint64_t cost = 0;
  double bytes = 0.0;  // of K and V
  double flop = 0.0;   // of its whole rectangle of rows and keys, masked pairs included
};

/// An item by a CTA. Microseconds from the beginning of the kernel; the moments are those of ItemTimes.
struct TimedItem {
  int32_t item = 0;  // of Timeline::planned
  int32_t cta = 0, lane = 0;
  double begin = 0.0, fed = 0.0, attended = 0.0, stored = 0.0, end = 0.0;
  int32_t merged = 0;

  double us() const { return end - begin; }
};

struct TimedCta {
  int32_t place = 0, lane = 0;
  double begin = 0.0, end = 0.0;
};

struct Timeline {
  std::string name, key;      // of the step; of the kernel
  bool on_cpu = false;        // a lane is a thread; else a CTA
  int32_t num_lists = 0;      // CTAs of the plan
  int32_t cluster = 1;        // CTAs that do an item of the plan together: neighbouring lanes
  int32_t num_lanes = 0;
  std::vector<PlannedItem> planned;
  std::vector<TimedItem> items;  // by CTA, in the order of time
  std::vector<TimedCta> ctas;
  double kernel_us = 0.0;     // from the first CTA's beginning to the last one's end
  double us_per_cost = 0.0;   // makes the planned costs of all items as long as they took
  double step_ns = 0.0;       // the shortest time between two moments: what the clock can tell apart
};

/// Of a run of `plan` on `engine` that filled `memory` (on the host by now).
Timeline read_timeline(const std::string& name, const Engine& engine, const Plan& plan, const void* memory);

/// What a class of items took. Rates are of one CTA.
struct ClassTimes {
  int64_t items = 0;
  double us = 0.0;           // all of them together
  double correlation = 0.0;  // of planned cost and measured time; NaN where there is none: fewer than three, or all alike
  double ns_per_cost = 0.0, bytes_per_ns = 0.0, flop_per_ns = 0.0;
};

struct TimelineSummary {
  double least = 0.0, mean = 0.0, most = 0.0;  // coverage: time of a lane's items over the kernel's
  double within = 0.0;                         // time of all items over the time that their CTAs were there
  double planned_balance = 1.0, measured_balance = 1.0;  // the most loaded over the mean
  double wait = 0.0, attend = 0.0, store = 0.0, merge = 0.0;  // shares of the time of items
  int64_t merged = 0;                                        // units
  ClassTimes classes[2];
};
TimelineSummary summarise(const Timeline& t);
nlohmann::ordered_json to_json(const Timeline& t, const TimelineSummary& s);
/// One line of it.
std::string to_text(const Timeline& t, const TimelineSummary& s);

/// A lane a CTA or thread, planned above measured, one step below the other.
std::string timeline_svg(const std::vector<Timeline>& steps);
/// For chrome://tracing and Perfetto: two processes a step, planned and measured, a thread a lane.
std::string chrome_trace(const std::vector<Timeline>& steps);

/// What belongs to an item, for tooltips and traces: "request 3, rows 0-15, KV heads 0-0, keys [0, 4096)".
std::string words_of(const PlannedItem& item);
constexpr const char* kClassNames[2] = {"memory", "compute"};

}  // namespace kvloom::cli
