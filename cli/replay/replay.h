// The main job: a request trace through continuous batching, a paged prefix-sharing KV cache and real plan/run steps, sampled rows checked
// against REF all along. Attention only.
//
// The clock. Requests arrive by simulated time; a step advances it by its plan time plus its run time times model layers / layers run: what
// the attention of the whole model would have taken on this machine. With fixed_step_us every step takes that long instead, and a replay
// is the same steps on every machine and every day.
#pragma once

#include "cli/replay/report.h"
#include "cli/replay/synthetic_trace.h"

#include <atomic>
#include <functional>

namespace kvloom::replay {

struct ReplayOptions {
  std::string trace;      // path, "-" for stdin, "" for the synthetic one
  int64_t requests = -1;  // at most so many of the trace; -1: all
  bool skip_bad = false;
  SyntheticOptions synthetic;
  double rate_scale = 1.0;  // 2: requests arrive twice as fast

  std::string model = "llama-3.1-8b";
  ModelOverrides overrides;
  ModelTypes types;
  int32_t layers = 1;

  BatchOptions batch;
  int64_t kv_pool_tokens = 0;  // 0: what the trace can use, within a quarter of the memory available and 4 GiB
  KvLayout layout = KvLayout::hnd;
  EngineOptions engine{.device = 0};  // backend cpu or cuda

  double fixed_step_us = 0.0;
  double limit_seconds = 0.0;  // of this machine; 0: none
  int32_t check_rows = 2;      // a step
  std::string export_path;     // JSONL of step shapes; "": none
  bool timeline = false;       // of the first layer's items, in the step of each kind with the most work
  bool measure_ceilings = true;
  uint64_t seed = 1;
};

/// How far a running replay is.
struct ReplayProgress {
  double share = 0.0;  // of the tokens of the trace
  int64_t steps = 0;
  int64_t sequences = 0;
  int64_t kv_tokens = 0;  // of the step
  double seconds = 0.0;
};

/// `stop` turning true (Ctrl-C) ends the replay after the step under way, with a partial report. Throws Error for bad options, a bad trace
/// row, a full disk under the export.
Report run_replay(const ReplayOptions& options, const std::atomic<bool>& stop, const std::function<void(const ReplayProgress&)>& progress);

}  // namespace kvloom::replay
