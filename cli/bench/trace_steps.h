// Steps of a trace as `kvloom replay --export` writes them, as shapes that can be measured: a line of JSON each. benchmarks/sample_steps.py makes a
// small file of a large one, and says of each step how many of the trace it stands for.
#pragma once

#include "cli/bench/gpu_shapes.h"

#include <string>
#include <vector>

namespace kvloom::cli {

struct TraceStep {
  GpuShape shape;     // step-1234-mixed: memory-bound, whatever it is, since it is timed once
  std::string kind;   // decode, mixed, prefill
  double weight = 1;  // steps of the trace that it stands for
};

/// The kind of a step: all requests of one new token are decode, none is prefill.
const char* kind_of_step(const std::vector<int32_t>& q_len);
/// `spec`: of a layer; page sizes are the file's. Throws io, or invalid_argument with file and line.
std::vector<TraceStep> read_steps(const std::string& path, const AttentionSpec& spec);
/// The worst of them: what an engine that runs them all is made for.
Capacity capacity_of(const std::vector<TraceStep>& steps);

nlohmann::ordered_json to_json(const TraceStep& step);

}  // namespace kvloom::cli
