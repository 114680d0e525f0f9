// What the planner's cost model is made of, measured with the library's own kernels: how fast one SM reads and computes alone, beside others of its
// kind and beside SMs that do the other, and what an item, a partial and a merge cost. 32/8 heads of 128, bf16, pages of 16.
#pragma once

#include "cli/bench/gpu_normals.h"
#include "cli/bench/gpu_timing.h"

#include <nlohmann/json.hpp>

#include <string>

namespace kvloom::cli {

/// `kernel`: "" or a family. `keys`: what lengths are multiples of; fewer than 1024 of them show that all runs, not how fast.
nlohmann::ordered_json measure_gpu_constants(int32_t device, const std::string& kernel, GpuTimer& timer, GpuNormals& normals, int32_t keys = 1024);

}  // namespace kvloom::cli
