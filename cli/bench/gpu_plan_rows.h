// Rows of `kvloom bench --backend cuda` that time the planner on the device: index arrays alone, no tensors.
#pragma once

#include "cli/bench/gpu_rows.h"

namespace kvloom::cli {

/// `row`: times of planning the step on the GPU (burst, several in a graph, one behind the other), and of planning it on the host. `kernel`: "" or a
/// family.
void measure_plan_alone(const GpuShape& shape, int32_t device, const std::string& kernel, GpuTimer& timer, GpuBenchRow& row);

}  // namespace kvloom::cli
