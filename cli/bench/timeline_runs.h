// Runs of a row that take the times of its items.
#pragma once

#include "cli/report/timeline.h"
#include "kvloom/api/gpu.h"

#include <functional>

namespace kvloom::cli {

/// Runs `plan` a few times, each alone, and returns the run whose length is the median. `engine` was made with options.timeline and has run the plan
/// before; `tensors(i)`: of run i; `stream`: of a GPU's engine.
Timeline timeline_of_runs(const std::string& name, Engine& engine, const Plan& plan, const std::function<RunTensors(int)>& tensors, GpuStream* stream = nullptr);

}  // namespace kvloom::cli
