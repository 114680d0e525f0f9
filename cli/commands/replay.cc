// kvloom replay: a request trace through continuous batching and real plan/run steps.
#include "cli/replay/replay.h"

#include "cli/command.h"
#include "cli/policy_name.h"
#include "cli/report/json_output.h"
#include "cli/report/machine.h"
#include "cli/report/progress.h"
#include "cli/report/text_output.h"
#include "cli/report/timeline_files.h"
#include "kvloom/api/kernels.h"
#include "kvloom/support/check.h"

#include <csignal>
#include <memory>

namespace kvloom::cli {
namespace {

std::atomic<bool> stop_requested{false};

/// The first Ctrl-C (or TERM) asks for the report; the second one ends the process.
void request_stop(int) { stop_requested.store(true, std::memory_order_relaxed); }

void install_stop_handler() {
  struct sigaction action {};
  action.sa_handler = request_stop;
  action.sa_flags = SA_RESETHAND;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

struct Arguments {
  replay::ReplayOptions options;
  std::string q_dtype = "bf16", kv_dtype = "bf16", policy = "auto", levels = "auto", layout = "hnd", backend = "cpu", cpu_target, kernel, json;
  std::vector<std::string> timelines;
  bool no_prefix_cache = false, no_ceilings = false;
};

void resolve(Arguments& a) {
  a.options.engine.backend = a.backend == "cuda" ? Backend::cuda : Backend::cpu;
  a.options.types.q = replay::parse_dtype(a.q_dtype, "--q-dtype");
  a.options.types.kv = replay::parse_dtype(a.kv_dtype, "--kv-dtype");
  a.options.engine.policy = parse_policy(a.policy);
  a.options.engine.levels = a.levels == "auto" ? LevelMode::automatic : LevelMode::off;
  a.options.engine.cpu_target = a.cpu_target.empty() ? nullptr : a.cpu_target.c_str();
  if (!a.kernel.empty() && a.backend != "cuda") throw CLI::ValidationError("--kernel", "got it with --backend " + a.backend + ", wanted --backend cuda");
  if (!a.kernel.empty()) a.options.engine.kernel = a.kernel.c_str();
  a.options.layout = a.layout == "nhd" ? KvLayout::nhd : KvLayout::hnd;
  a.options.batch.prefix_cache = !a.no_prefix_cache;
  a.options.measure_ceilings = !a.no_ceilings;
}

void show(Progress& bar, const replay::ReplayProgress& p) {
  const double left = p.share > 0.001 ? p.seconds / p.share * (1.0 - p.share) : 0.0;
  bar.update(p.share, fmt::format("step {}, {} sequences, {}k keys, {:.0f} s, about {:.0f} s left", p.steps, p.sequences,
                                  p.kv_tokens / 1000, p.seconds, left));
}

int run(Arguments& a) {
  resolve(a);
  check_target("--json", a.json);
  check_timeline_paths(a.timelines);
  a.options.timeline = !a.timelines.empty();
  install_stop_handler();
  replay::Report report;
  {
    Progress bar;
    report = replay::run_replay(a.options, stop_requested, [&](const replay::ReplayProgress& p) { show(bar, p); });
  }
  std::FILE* const text_to = a.json == "-" ? stderr : stdout;
  std::fputs(replay::to_text(report).c_str(), text_to);
  std::fflush(text_to);
  if (!a.json.empty()) write_json(a.json, replay::to_json(report));
  write_timelines(a.timelines, report.timelines());
  if (report.rows_checked > 0 && !report.fault().empty()) {
    fail(ErrorCode::internal, "replay: accuracy: {}; `kvloom check` finds the smallest case", report.fault());
  }
  return report.stopped == "interrupted" ? 130 : 0;
}

void add_traffic(CLI::App& c, Arguments& a) {
  replay::ReplayOptions& o = a.options;
  c.add_option("--trace", o.trace, "Azure LLM CSV or Mooncake JSONL, - for stdin; default: a synthetic trace made from --seed");
  c.add_option("--requests", o.requests, "At most so many requests of the trace")->check(kNonNegative);
  c.add_flag("--skip-bad", o.skip_bad, "Count bad rows and leave them out, instead of stopping at the first");
  c.add_option("--rate-scale", o.rate_scale, "Requests arrive so many times as fast")->check(kPositive)->capture_default_str();
  c.add_option("--samples", o.batch.samples, "Continuations of every prompt, on shared pages")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  c.add_option("--seed", o.seed, "Of the synthetic trace, Q, K, V and the rows checked")->check(kNonNegative)->capture_default_str();
}

void add_model(CLI::App& c, Arguments& a) {
  replay::ReplayOptions& o = a.options;
  c.add_option("--model", o.model, "Preset: llama-3.1-8b, ... (a wrong name lists all)")
      ->check(one_of(replay::model_names()))
      ->capture_default_str();
  c.add_option("--layers", o.layers, "Layers to run; each has its own Q, K and V")->check(kPositive)->capture_default_str();
  c.add_option("--heads", o.overrides.heads, "Query heads instead of the preset's")->check(kPositive);
  c.add_option("--kv-heads", o.overrides.kv_heads, "KV heads instead of the preset's")->check(kPositive);
  c.add_option("--head-dim", o.overrides.head_dim, "Head dim instead of the preset's")->check(kPositive);
  c.add_option("--q-dtype", a.q_dtype, "Of Q and O: f32, f16, bf16; e4m3, e5m2: O is bf16")
      ->check(one_of(replay::dtype_names()))
      ->capture_default_str();
  c.add_option("--kv-dtype", a.kv_dtype, "Of the KV cache: f32, f16, bf16, e4m3, e5m2")
      ->check(one_of(replay::dtype_names()))
      ->capture_default_str();
}

void add_batching(CLI::App& c, Arguments& a) {
  replay::ReplayOptions& o = a.options;
  c.add_option("--token-budget", o.batch.token_budget, "Query tokens a step")->check(CLI::Range(1, 1 << 20))->capture_default_str();
  c.add_option("--max-batch", o.batch.max_batch, "Sequences a step")->check(CLI::Range(1, 65536))->capture_default_str();
  c.add_option("--page-size", o.batch.page_size, "Tokens a page")->check(CLI::Range(1, 65536))->capture_default_str();
  c.add_option("--kv-pool-tokens", o.kv_pool_tokens,
               "Size of the KV pool; default: what the trace can use within a quarter of the free memory and 4 GiB, or 85 % of a GPU's")
      ->check(kPositive);
  c.add_option("--kv-layout", a.layout, "hnd keeps a head's tokens of a page together, nhd a token's heads")
      ->check(one_of({"hnd", "nhd"}))
      ->capture_default_str();
  c.add_flag("--no-prefix-cache", a.no_prefix_cache, "Do not look for shared prompt prefixes");
}

void add_engine(CLI::App& c, Arguments& a) {
  replay::ReplayOptions& o = a.options;
  c.add_option("--backend", a.backend, "cpu, cuda")->check(one_of({"cpu", "cuda"}))->capture_default_str();
  c.add_option("--device", o.engine.device, "cuda: which GPU")->check(kNonNegative)->capture_default_str();
  c.add_option("--threads", o.engine.threads, "cpu: default: one a core")->check(kPositive);
  c.add_option("--ctas", o.engine.num_ctas, "CTAs that a plan balances over; default: the backend's own (clusters of two where CTAs work so: family sm90, many rows)")->check(kPositive);
  c.add_option("--policy", a.policy, policy_names())->capture_default_str();
  c.add_option("--levels", a.levels, "auto: shared prefixes are read once where it pays; off")
      ->check(one_of({"auto", "off"}))
      ->capture_default_str();
  c.add_option("--cpu-target", a.cpu_target, "cpu: avx2, avx512, portable; default: the best here")->check(one_of(cpu_target_names()));
  c.add_option("--kernel", a.kernel, "cuda: this family of kernels; default: the fastest")->check(one_of(gpu_family_names()));
}

void add_run(CLI::App& c, Arguments& a) {
  replay::ReplayOptions& o = a.options;
  c.add_option("--check-rows", o.check_rows, "Rows checked against fp64 each step")->check(kPositive)->capture_default_str();
  c.add_option("--fixed-step-us", o.fixed_step_us, "The simulated clock advances so much a step; default: as the measured time says")
      ->check(kNonNegative);
  c.add_option("--limit-seconds", o.limit_seconds, "Stop after so long, with a partial report")->check(kNonNegative);
  c.add_option("--export", o.export_path, "Write the shape of every step as JSONL")->type_name("FILE");
  c.add_flag("--no-ceilings", a.no_ceilings, "Do not measure what the machine can do at most");
  c.add_option("--timeline", a.timelines,
               "Planned and measured times of every item, in the step of each kind with the most work: a picture (FILE.svg) or a Chrome trace (FILE.json); may be given again")
      ->type_name("FILE")
      ->check(names_by(timeline_path_fault));
  c.add_option("--json", a.json, "Write the report as JSON, - for stdout")->type_name("FILE");
}

void add(CLI::App& c, int& exit_code) {
  const auto arguments = std::make_shared<Arguments>();
  add_traffic(c, *arguments);
  add_model(c, *arguments);
  add_batching(c, *arguments);
  add_engine(c, *arguments);
  add_run(c, *arguments);
  c.callback([arguments, &exit_code] { exit_code = run(*arguments); });
}

const RegisterCommand registered({"replay", "Run a request trace through continuous batching and real attention steps (attention only)",
                                  add});

}  // namespace
}  // namespace kvloom::cli
