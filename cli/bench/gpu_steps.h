// Steps of a trace under several schedules: what each takes, and what that sums up to over the trace. Without a GPU: what the planner's cost model
// says of them.
#pragma once

#include "cli/bench/gpu_ceilings.h"
#include "cli/bench/trace_steps.h"
#include "kvloom/api/engine.h"

#include <deque>
#include <map>
#include <optional>

namespace kvloom::cli {

/// One step under one schedule.
struct StepTime {
  std::string why;        // it could not be; "": it was
  std::string policy;     // that was chosen
  std::string key;
  double us = 0;          // on the GPU, median; 0: planned alone
  double plan_us = 0;     // host, median
  double planned_us = 0;  // of the most loaded CTA, by the cost model
  double mean_us = 0;     // of the mean CTA, by the cost model
};
using StepRow = std::map<std::string, StepTime>;  // by schedule

/// Engines for all of the steps, one a schedule, as a server makes them.
class StepSchedules {
 public:
  /// `arch` not empty: plans for it, without a device.
  StepSchedules(const std::vector<TraceStep>& steps, const std::vector<std::string>& schedules, int32_t device, const std::string& kernel, const std::string& arch);
  /// By the cost model alone.
  StepRow plan(const TraceStep& step);
  StepRow measure(const TraceStep& step, GpuTimer& timer, GpuNormals& normals);

 private:
  struct Schedule {
    std::string name;
    std::optional<Engine> engine;
    std::string why;  // there is none
    std::optional<Plan> plan;
  };
  void plan(Schedule& schedule, const Batch& batch, StepTime& time);

  int32_t device_ = 0;
  std::deque<Schedule> schedules_;
};

/// Sums of weight x time by kind and over all steps; of schedules, ratios to the first one. `peers` [steps]: what other engines took
/// (PeerResults::of), the fastest of each step counts, over the steps that one of them did.
nlohmann::ordered_json step_sums(const std::vector<TraceStep>& steps, const std::vector<StepRow>& rows, const std::vector<std::string>& schedules,
                                 const std::vector<nlohmann::ordered_json>& peers);
nlohmann::ordered_json to_json(const TraceStep& step, const StepRow& row, const nlohmann::ordered_json& peers);

}  // namespace kvloom::cli
