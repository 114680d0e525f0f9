// `kvloom bench --steps FILE`: the steps of a trace under several schedules, measured, or (--list) by the planner's cost model alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvloom::cli {

struct StepsOptions {
  std::string file, model = "llama-3.1-8b", json, peers, kernel, filter;
  std::vector<std::string> schedules;  // the others are compared with the first
  std::string arch = "sm_90a";         // list: planned for this
  int32_t device = 0;
  bool list = false;
};

/// What StepsOptions::schedules may name: a policy, or `flat`.
std::vector<std::string> schedule_names();

/// The exit status: 1 if a step could not be measured.
int run_steps(const StepsOptions& options);

}  // namespace kvloom::cli
