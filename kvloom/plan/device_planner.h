// What the host tells the planner on the device: everything of a step's plan but its lengths. device/plan writes the rest.
#pragma once

#include "kvloom/plan/device_args.h"
#include "kvloom/plan/planner.h"

#include <string>

namespace kvloom::plan {

/// "" if steps of such an engine can be planned on a device, else why not and what to do about it: "policy: got heap, wanted stream; ...".
std::string device_refusal(const AttentionSpec& spec, const SchedulerConfig& config);

/// The size of a step, known before its lengths are.
struct DeclaredStep {
  int32_t num_requests = 0;
  int32_t max_q_len = 0;   // query tokens of a request
  int64_t num_tokens = 0;  // rows of Q and O: query tokens of all requests, padding included
  bool lists_per_kv_head = false;
};

/// True if a step so declared may have items of class 1, the compute-bound ones.
bool may_use_compute(const AttentionSpec& spec, const SchedulerConfig& config, const DeclaredStep& step);

/// Arguments for the device's planner but for pointers and where lists are. `layout`: plan_layout() of the same. The plan's bytes are those of
/// Planner::plan() with the same spec, capacity and config. Throws over_capacity or invalid_argument: `step` named.
DeviceArgs device_args(const AttentionSpec& spec, const Capacity& capacity, const SchedulerConfig& config, const PlanLayout& layout,
                       const DeclaredStep& step);

/// Throws what Planner::plan() would have thrown for the batch; `verdict` is a copy of the device's.
void check_verdict(const PlanVerdict& verdict);

}  // namespace kvloom::plan
