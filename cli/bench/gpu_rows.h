// Rows of `kvloom bench --backend cuda` measured: times by the GPU's own clock, beside ceilings of the same run.
#pragma once

#include "cli/bench/gpu_ceilings.h"
#include "cli/bench/gpu_problem.h"
#include "cli/bench/gpu_shapes.h"
#include "cli/report/timeline.h"

#include <nlohmann/json.hpp>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace kvloom::cli {

/// What was measured in one protocol.
struct GpuFigure {
  GpuTimes times;
  double tbps = 0;          // bytes_of the shape a second
  double tflops = 0;        // flop_of the shape a second
  double share = 0;         // of the ceiling that binds, in the same protocol; 0: there is none
  double tensor_share = 0;  // of the products that the tensor cores could have done in as many cycles; 0: unknown
};

struct GpuBenchRow {
  std::string shape;
  std::string why;  // it was not measured; "": it was
  std::string key, policy;
  std::string share_of;  // read, matmul, or (without cuBLASLt) products
  bool memory_bound = false;
  bool plan_alone = false;  // of the shape: `burst` has times alone
  int32_t more = 0;         // of the shape
  GpuFigure burst;
  std::optional<GpuFigure> sustained;  // compute-bound rows
  double plan_us = 0;                  // host, median
  double run_host_us = 0;              // host, of a run() call, median
  int runs = 1;                        // in a graph whose time was taken: a row is the share of one
  int64_t plan_bytes = 0;              // that go to the device
  double alone_us = 0;                 // plan_alone: of a plan by itself, between two events
  double rope_us = 0;                  // rope_apart: of the rotation alone
  std::string beside;                  // the shape's
  double times = 0;                    // this row's time over that of `beside`; 0: there is none, or it was not measured
  std::optional<Timeline> timeline;
};

struct GpuBenchOptions {
  int32_t device = 0;
  std::string kernel;  // this family; "": the fastest
  GpuProtocol protocol;
  GpuCeilingSizes ceilings;
  bool no_ceilings = false;  // rows alone, without shares
  bool timeline = false;  // of each row, by runs of an engine of its own: kernels with marks are a little slower
};

/// Measures the ceilings, then row after row.
class GpuBench {
 public:
  explicit GpuBench(const GpuBenchOptions& options);
  const GpuCeilings& ceilings() const { return ceilings_; }
  /// gpu_constants.h
  nlohmann::ordered_json constants();
  /// An Error of this row alone (no kernel, no memory) is the row's `why`: the others stand.
  GpuBenchRow measure(const GpuShape& shape);

 private:
  void measure(const GpuShape& shape, GpuBenchRow& row);
  void measure_figures(const GpuShape& shape, const GpuWork& work, GpuBenchRow& row);
  void measure_timeline(const GpuProblem& problem, const GpuShape& shape, EngineOptions options, GpuBenchRow& row);
  GpuFigure figure(const GpuShape& shape, const GpuTimes& times, double ceiling) const;

  GpuBenchOptions options_;
  GpuInfo gpu_;
  GpuTimer timer_;
  GpuNormals normals_;
  GpuCeilings ceilings_;
  std::map<std::string, double> times_;  // of the rows so far, by name
};

nlohmann::ordered_json to_json(const GpuBenchRow& row);

/// Runs that make a graph, of work that takes `us` on one of `copies`: 1 where it is long; else all copies twice, and as often again as it takes.
int graph_runs(double us, int copies);

}  // namespace kvloom::cli
