#include "cli/bench/gpu_rows.h"

#include "cli/bench/gpu_plan_rows.h"
#include "cli/bench/gpu_problem.h"
#include "cli/bench/timing.h"
#include "kvloom/api/engine.h"

namespace kvloom::cli {
namespace {

constexpr int kHostRuns = 40;
constexpr double kShortUs = 400.0;  // below this several runs make a graph: between two events alone stands the host's launch, too

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

GpuBench::GpuBench(const GpuBenchOptions& options)
    : options_(options),
      gpu_(gpus()[size_t(options.device)]),
      timer_(options.device, options.protocol),
      normals_(options.device),
      ceilings_(measure_gpu_ceilings(options.device, timer_, normals_, options.ceilings)) {}

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
  }
  return row;
}

void GpuBench::measure(const GpuShape& s, GpuBenchRow& row) {
  if (s.plan_alone) return measure_plan_alone(s, options_.device, options_.kernel, timer_, row);
  const GpuProblem p(s, options_.device, normals_);
  EngineOptions options;
  options.backend = Backend::cuda;
  options.device = options_.device;
  if (!options_.kernel.empty()) options.kernel = options_.kernel.c_str();
  Engine engine(s.spec, p.capacity(), options);
  Plan plan = engine.plan(p.batch());
  row.key = engine.kernel_key();
  row.policy = name_of(plan.view().header->policy);
  row.plan_bytes = plan.bytes().size;
  row.memory_bound = s.memory_bound;
  row.more = s.more;
  measure_host(engine, plan, p, timer_, row);
  GpuStream& stream = timer_.stream();
  const auto run = [&](int i) { engine.run(plan, p.tensors(i), stream.handle()); };
  row.runs = timer_.once_us({[&] { run(0); }}) < kShortUs ? 2 * p.copies() : 1;
  stream.begin_capture();
  for (int i = 0; i < row.runs; ++i) run(i);
  stream.end_capture();
  const GpuWork work{[&] { stream.launch(); }, row.runs};
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
  j["plan_us"] = r.plan_us;
  j["run_host_us"] = r.run_host_us;
  j["runs"] = r.runs;
  j["plan_bytes"] = r.plan_bytes;
  return j;
}

}  // namespace kvloom::cli
