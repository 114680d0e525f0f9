#include "cli/bench/gpu_rows.h"

#include "cli/bench/gpu_constants.h"
#include "cli/bench/gpu_plan_rows.h"
#include "cli/bench/timeline_runs.h"
#include "cli/bench/timing.h"
#include "kvloom/api/engine.h"

#include <algorithm>
#include <cmath>

namespace kvloom::cli {
namespace {

constexpr int kHostRuns = 40;
constexpr double kShortUs = 400.0;  // below this several runs make a graph: between two events alone stands the host's launch, too
constexpr double kGraphUs = 2000.0; // that long at least, so that what stands between two graphs is no part of a run

/// Medians of what the host does: a plan, and run() calls. Also the warm-up of everything.
void measure_host(Engine& engine, Plan& plan, const GpuProblem& p, GpuTimer& timer, GpuBenchRow& row) {
  std::vector<double> plans, runs;
  for (int i = 0; i < kHostRuns; ++i) {
    const double start = now_us();
    engine.replan(plan, p.batch());
    plans.push_back(now_us() - start);
  }
  engine.upload(plan, timer.stream().handle());
  for (int i = 0; i < kHostRuns; ++i) {
    const RunTensors tensors = p.tensors(i);
    const double start = now_us();
    engine.run(plan, tensors, timer.stream().handle());
    runs.push_back(now_us() - start);
  }
  timer.stream().synchronize();
  row.plan_us = percentile(plans, 0.5);
  row.run_host_us = percentile(runs, 0.5);
}

}  // namespace

int graph_runs(double us, int copies) {
  if (us >= kShortUs) return 1;
  return copies * std::max(2, int(std::ceil(kGraphUs / (std::max(us, 1.0) * copies))));
}

GpuBench::GpuBench(const GpuBenchOptions& options)
    : options_(options),
      gpu_(gpus()[size_t(options.device)]),
      timer_(options.device, options.protocol),
      normals_(options.device),
      ceilings_(options.no_ceilings ? GpuCeilings{.matmul = {}, .matmul_why = "--no-ceilings"} : measure_gpu_ceilings(options.device, timer_, normals_, options.ceilings)) {}

nlohmann::ordered_json GpuBench::constants() { return measure_gpu_constants(options_.device, options_.kernel, timer_, normals_); }

GpuFigure GpuBench::figure(const GpuShape& s, const GpuTimes& times, double ceiling) const {
  GpuFigure f;
  f.times = times;
  f.tbps = 1e-6 * bytes_of(s) / times.us;
  f.tflops = 1e-6 * flop_of(s) / times.us;
  if (ceiling > 0) f.share = (s.memory_bound ? f.tbps : f.tflops) / ceiling;
  f.tensor_share = tensor_share(gpu_, flop_of(s), times);
  return f;
}

GpuBenchRow GpuBench::measure(const GpuShape& s) {
  GpuBenchRow row;
  row.shape = s.name;
  try {
    measure(s, row);
  } catch (const Error& e) {
    row.why = e.what();
    return row;
  }
  times_[s.name] = row.burst.times.us;
  const auto other = times_.find(s.beside);
  if (other != times_.end()) row.beside = s.beside, row.times = row.burst.times.us / other->second;
  return row;
}

void GpuBench::measure(const GpuShape& s, GpuBenchRow& row) {
  if (s.plan_alone) return measure_plan_alone(s, options_.device, options_.kernel, timer_, row);
  const GpuProblem p(s, options_.device, normals_);
  EngineOptions options;
  options.backend = Backend::cuda;
  options.device = options_.device;
  options.policy = s.policy;
  options.levels = s.levels;
  options.early_launch = s.early_launch;
  if (!options_.kernel.empty()) options.kernel = options_.kernel.c_str();
  Engine engine(run_spec(s), p.capacity(), options);
  Plan plan = engine.plan(p.batch());
  row.key = engine.kernel_key();
  row.policy = name_of(plan.view().header->policy);
  row.plan_bytes = plan.bytes().size;
  row.memory_bound = s.memory_bound;
  row.more = s.more;
  measure_host(engine, plan, p, timer_, row);
  GpuStream& stream = timer_.stream();
  const auto run = [&](int i) {
    if (s.rope_apart) p.rotate_keys(i, s.spec.variant.rope, stream);
    engine.run(plan, p.tensors(i), stream.handle());
  };
  timer_.once_us({[&] { run(0); }});  // loads what was not loaded yet
  row.runs = graph_runs(timer_.once_us({[&] { run(0); }}), p.copies());
  const auto captured = [&](const std::function<void(int)>& launch) {
    stream.begin_capture();
    for (int i = 0; i < row.runs; ++i) launch(i);
    stream.end_capture();
    return GpuWork{[&] { stream.launch(); }, row.runs};
  };
  if (s.rope_apart) row.rope_us = timer_.burst(captured([&](int i) { p.rotate_keys(i, s.spec.variant.rope, stream); }), false).us;
  const GpuWork work = captured(run);
  measure_figures(s, work, row);
  if (options_.timeline) measure_timeline(p, s, options, row);
}

void GpuBench::measure_figures(const GpuShape& s, const GpuWork& work, GpuBenchRow& row) {
  if (s.memory_bound) {
    row.share_of = "read";
    row.burst = figure(s, timer_.burst(work, false), ceilings_.read_tbps);
    return;
  }
  const bool matmul = ceilings_.matmul.has_value();
  row.share_of = matmul ? "matmul" : "products";
  row.burst = figure(s, timer_.burst(work, true), matmul ? ceilings_.matmul->burst_tflops : ceilings_.products_tflops);
  row.sustained = figure(s, timer_.sustained(work, row.burst.times.us), matmul ? ceilings_.matmul->sustained_tflops : 0.0);
}

void GpuBench::measure_timeline(const GpuProblem& p, const GpuShape& s, EngineOptions options, GpuBenchRow& row) {
  options.timeline = true;
  Engine engine(run_spec(s), p.capacity(), options);
  const Plan plan = engine.plan(p.batch());
  GpuStream& stream = timer_.stream();
  for (int i = 0; i < timer_.protocol().warm_ups; ++i) engine.run(plan, p.tensors(i), stream.handle());
  stream.synchronize();
  row.timeline = timeline_of_runs(s.name, engine, plan, [&](int i) { return p.tensors(i); }, &stream);
}

namespace {

/// `us`: the name of the time.
void add_figure(nlohmann::ordered_json& to, const char* us, const GpuFigure& f, bool memory_bound) {
  add_times(to, us, f.times);
  to["tbps"] = f.tbps;
  to["tflops"] = f.tflops;
  to["share"] = known(f.share);
  if (!memory_bound) to["tensor_share"] = known(f.tensor_share);
}

}  // namespace

nlohmann::ordered_json to_json(const GpuBenchRow& r) {
  if (!r.why.empty()) return {{"shape", r.shape}, {"why", r.why}};
  nlohmann::ordered_json j{
      {"shape", r.shape}, {"more_tokens", r.more}, {"key", r.key}, {"policy", r.policy},
      {"bound", r.plan_alone ? "plan" : r.memory_bound ? "memory" : "compute"}};
  add_figure(j, "median_us", r.burst, r.memory_bound);
  j["share_of"] = r.share_of;
  if (r.sustained) add_figure(j["sustained"], "mean_us", *r.sustained, false);
  if (r.alone_us > 0) j["alone_us"] = r.alone_us;
  if (r.rope_us > 0) j["rope_us"] = r.rope_us;
  if (r.times > 0) j["beside"] = {{"shape", r.beside}, {"times", r.times}};
  j["plan_us"] = r.plan_us;
  j["run_host_us"] = r.run_host_us;
  j["runs"] = r.runs;
  j["plan_bytes"] = r.plan_bytes;
  if (r.timeline) j["timeline"] = to_json(*r.timeline, summarise(*r.timeline));
  return j;
}

}  // namespace kvloom::cli
