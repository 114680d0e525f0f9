// What a replay found out: one struct, as text for people and as JSON for programs.
#pragma once

#include "cli/bench/ceilings.h"
#include "cli/replay/batcher.h"
#include "cli/replay/models.h"
#include "cli/replay/row_check.h"
#include "cli/replay/step_stats.h"
#include "cli/report/machine.h"
#include "cli/report/timeline.h"
#include "kvloom/api/gpu.h"

#include <nlohmann/json.hpp>

#include <map>
#include <optional>

namespace kvloom::replay {

/// Samples of one quantity.
class Distribution {
 public:
  void add(double x) { samples_.push_back(x); }
  int64_t count() const { return int64_t(samples_.size()); }
  /// The smallest sample that at least `share` of all samples do not exceed; 0 without samples.
  double quantile(double share) const;
  double median() const { return quantile(0.5); }
  double p99() const { return quantile(0.99); }

 private:
  std::vector<double> samples_;
};

/// Steps of one kind, added up.
struct StepTotals {
  int64_t steps = 0;
  int64_t tokens = 0;
  double run_us = 0.0;      // of all layers
  double read_bytes = 0.0;  // of K and V, of all layers
  double flop = 0.0;
  Distribution layer_us;

  double gbps() const { return run_us > 0 ? read_bytes / run_us * 1e-3 : 0.0; }
  double gflops() const { return run_us > 0 ? flop / run_us * 1e-3 : 0.0; }
};

enum class StepKind { decode = 0, mixed = 1, prefill = 2 };
constexpr const char* kStepKindNames[] = {"decode", "mixed", "prefill"};

/// A step whose items' times were taken.
struct TimedStep {
  int64_t step = 0;
  uint64_t cost = 0;  // planned, of its first layer
  cli::Timeline timeline;
};

struct Report {
  // What ran.
  std::string trace, trace_format;
  Model model;
  ModelTypes types;
  int32_t layers = 1;
  int32_t samples = 1;
  double rate_scale = 1.0;
  std::string kernel_keys;  // of the kinds of layers
  std::string policy, levels;
  int32_t threads = 0, num_ctas = 0;
  int64_t pool_tokens = 0, token_bytes = 0;
  int32_t page_size = 16, pools = 1;
  double fixed_step_us = 0.0;  // 0: the clock follows the measured time
  std::string stopped;         // "": ran to the end; "interrupted", "time limit"

  // What happened.
  int64_t requests = 0;  // taken in, rejected ones included
  int64_t steps = 0;
  BatchCounts counts;
  std::vector<Rejected> rejected;
  int64_t skipped_rows = 0;
  std::string first_skipped;
  double simulated_seconds = 0.0, wall_seconds = 0.0;
  int64_t most_sequences = 0, most_used_pages = 0;

  // What it took.
  double plan_us_total = 0.0;
  int64_t plans_ahead = 0;       // steps planned while the one before them ran
  double hidden_plan_us = 0.0;   // of plan_us_total, behind that run
  Distribution plan_us, run_us;  // of one plan, of one layer
  StepTotals all, kinds[3];
  std::map<std::string, int64_t> policies;  // steps by the policy that the plan chose
  int64_t steps_with_levels = 0;
  bool takes_times = false;  // kernels had marks of time: a little slower
  std::optional<TimedStep> timed[3];  // takes_times: of each kind the step with the most work
  double saved_bytes = 0.0;
  Distribution balance;  // over steps with >= 32 tiles a CTA
  double max_excess_tiles = 0.0;
  int64_t split_steps = 0, steps_over_one_tile = 0;

  // Whether it was right.
  int64_t rows_checked = 0;
  double rel_error = 0.0, max_rel_error = 0.0, max_excess_error = 0.0, max_lse_error = 0.0, effective_elements = 0.0;
  int64_t nonfinite_outputs = 0;
  Tolerance tolerance{};

  cli::Machine machine;
  cli::Ceilings ceilings;
  int64_t peak_rss_bytes = 0;
  GpuInfo gpu;  // no name: it ran on the CPU
  int64_t peak_device_bytes = 0;

  double prefix_hit_rate() const { return counts.prompt_tokens > 0 ? double(counts.hit_tokens) / double(counts.prompt_tokens) : 0.0; }
  bool on_gpu() const { return !gpu.name.empty(); }
  /// Query tokens over the time of plans and runs; a plan counts as far as no run hid it.
  double tokens_per_s() const {
    const double us = all.run_us + plan_us_total - hidden_plan_us;
    return us > 0 ? double(counts.tokens) / us * 1e6 : 0.0;
  }
  std::vector<cli::Timeline> timelines() const;
  /// "" or what was not within tolerance.
  std::string fault() const;
};

nlohmann::ordered_json to_json(const Report& r);
std::string to_text(const Report& r);

}  // namespace kvloom::replay
