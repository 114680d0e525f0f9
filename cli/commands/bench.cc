// kvloom bench: measured rows beside the ceilings of the same run.
#include "cli/bench/cpu_rows.h"
#include "cli/bench/gpu_rows.h"
#include "cli/bench/peers.h"
#include "cli/bench/steps_run.h"
#include "cli/command.h"
#include "cli/replay/models.h"
#include "cli/report/json_output.h"
#include "cli/report/machine.h"
#include "cli/report/timeline_files.h"
#include "kvloom/api/kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <optional>

namespace kvloom::cli {
namespace {

struct Options {
  std::string backend = "cpu";
  std::string json, filter, peers, kernel;
  BenchOptions bench;
  std::vector<std::string> presets, timelines;
  int32_t device = 0;
  int repeat = 0;
  bool even_lengths = false, list = false, constants = false, no_ceilings = false;
  StepsOptions steps;
};

void print_ceilings(const GpuInfo& gpu, const GpuCeilings& c) {
  fmt::print("{}: read {:.2f} TB/s, copy {:.2f} TB/s, products (bf16 mma.sync) {:.0f} TFLOP/s\n", gpu.name, c.read_tbps, c.copy_tbps,
             c.products_tflops);
  if (c.matmul) {
    fmt::print("matmul {}^3 bf16 ({}): burst {:.0f} TFLOP/s, sustained {:.0f}\n", c.matmul->n, c.matmul->library, c.matmul->burst_tflops,
               c.matmul->sustained_tflops);
  } else {
    fmt::print("matmul: not measured: {}\n", c.matmul_why);
  }
  fmt::print("{:<50} {:>11} {:>7} {:>8} {:>6} {:>6} | {:>9} {:>6} {:>6} {:>8} | {:>8} {:>8}  {:<11} {}\n", "shape", "median us", "TB/s",
             "TFLOP/s", "share", "tensor", "sustained", "share", "tensor", "MHz", "plan us", "run us", "policy", "p10 - p90 us");
}

std::string percent(double share) { return share > 0 ? fmt::format("{:.1f}%", 100 * share) : "-"; }

void print_row(const GpuBenchRow& r) {
  const GpuFigure& b = r.burst;
  const GpuFigure s = r.sustained.value_or(GpuFigure());
  fmt::print("{:<50} {:>11.1f} {:>7.3f} {:>8.1f} {:>6} {:>6} | {:>9} {:>6} {:>6} {:>8} | {:>8.1f} {:>8.1f}  {:<11} {:.1f} - {:.1f}\n",
             r.shape, b.times.us, b.tbps, b.tflops, percent(b.share), percent(b.tensor_share),
             r.sustained ? fmt::format("{:.1f}", s.tflops) : "-", percent(s.share), percent(s.tensor_share),
             s.times.clock_mhz > 0 ? fmt::format("{:.0f}", s.times.clock_mhz) : "-", r.plan_us, r.run_host_us, r.policy, b.times.p10_us,
             b.times.p90_us);
  if (r.times > 0) fmt::print("  {:.3f} x {}\n", r.times, r.beside);
  std::fflush(stdout);
}

void print_peers(const nlohmann::ordered_json& list) {
  for (const auto& p : list) {
    if (!p.contains("median_us")) continue;
    const double sustained = p.contains("sustained") ? p["sustained"].value("tflops", 0.0) : 0.0;
    fmt::print("  {:<48} {:>11.1f} {:>7.3f} {:>8.1f} {:>6} {:>6} | {:>9}\n", p["peer"].get<std::string>(), p["median_us"].get<double>(),
               p.value("tbps", 0.0), p.value("tflops", 0.0), "", "", sustained > 0 ? fmt::format("{:.1f}", sustained) : "-");
  }
}

void take_timeline(const Timeline& t, bool table, std::vector<Timeline>& timelines) {
  if (table) fmt::print("  {}\n", to_text(t, summarise(t)));
  timelines.push_back(t);
}

/// The exit status: 1 if a row could not be measured.
int run_gpu(const Options& options, const std::vector<GpuShape>& shapes) {
  const GpuInfo gpu = gpu_at(options.device, "bench");
  const bool table = options.json != "-";
  GpuBenchOptions o;
  o.device = options.device;
  o.kernel = options.kernel;
  o.no_ceilings = options.no_ceilings;
  o.timeline = !options.timelines.empty();
  if (options.repeat > 0) o.protocol.repeat = options.repeat;
  std::optional<PeerResults> peers;
  if (!options.peers.empty()) peers.emplace(options.peers, gpu.name);
  nlohmann::ordered_json theirs = nlohmann::ordered_json::object();
  for (const GpuShape& s : shapes) theirs[s.name] = peers ? peers->of(s) : nlohmann::ordered_json::array();
  GpuBench bench(o);
  if (table) print_ceilings(gpu, bench.ceilings());
  nlohmann::ordered_json out{{"machine", to_json(this_machine())},
                             {"gpu", to_json(gpu)},
                             {"protocol", to_json(o.protocol)},
                             {"ceilings", to_json(bench.ceilings())}};
  if (peers) out["peers"] = peers->facts();
  if (options.constants) {
    out["constants"] = bench.constants();
    if (table) fmt::print("constants: {}\n", out["constants"].dump(2));
    if (!options.json.empty() && table) write_json(options.json, out);
  }
  out["rows"] = nlohmann::ordered_json::array();
  bool whole = true;
  std::vector<Timeline> timelines;
  for (const GpuShape& s : shapes) {
    const GpuBenchRow row = bench.measure(s);
    if (!row.why.empty()) fmt::print(stderr, "kvloom: bench: {}: {}\n", s.name, row.why);
    if (row.why.empty() && table) print_row(row);
    whole = whole && row.why.empty();
    out["rows"].push_back(to_json(row));
    if (!theirs[s.name].empty()) out["rows"].back()["peers"] = theirs[s.name];
    if (table) print_peers(theirs[s.name]);
    if (row.timeline) take_timeline(*row.timeline, table, timelines);
    if (!options.json.empty() && table) write_json(options.json, out);  // what there is, should the run be cut short
  }
  if (!table) write_json(options.json, out);
  write_timelines(options.timelines, timelines);
  return whole ? 0 : 1;
}

void run_cpu(const Options& options, const std::vector<BenchShape>& shapes) {
  const bool table = options.json != "-";
  bool headed = false;  // with the first row: a refusal stands alone
  std::vector<Timeline> timelines;
  const std::vector<BenchRow> rows = run_cpu_bench(shapes, options.bench, [&](const BenchRow& r) {
    if (r.timeline && !table) take_timeline(*r.timeline, table, timelines);
    if (!table) return;
    if (!headed) {
      fmt::print("{:<50} {:>3} {:>12} {:>8} {:>9}  {:>8} {:>9}  {:>6}  {}\n", "shape", "T", "median us", "GB/s", "GFLOP/s", "of GB/s",
                 "of GFLOP/s", "share", "p10 - p90");
    }
    headed = true;
    fmt::print("{:<50} {:>3} {:>12.1f} {:>8.2f} {:>9.1f}  {:>8.1f} {:>9.1f}  {:>5.1f}%  {:.0f} - {:.0f}%\n", r.shape, r.threads,
               r.median_us, r.gbps, r.gflops, r.ceiling_gbps, r.ceiling_gflops, 100 * r.share, 100 * r.share_p10, 100 * r.share_p90);
    if (r.timeline) take_timeline(*r.timeline, true, timelines);
    std::fflush(stdout);
  });
  write_timelines(options.timelines, timelines);
  if (options.json.empty()) return;
  nlohmann::ordered_json out{
      {"machine", to_json(this_machine())}, {"repeat", options.bench.repeat}, {"rows", nlohmann::ordered_json::array()}};
  for (const BenchRow& r : rows) out["rows"].push_back(to_json(r));
  write_json(options.json, out);
}

/// True if `name` contains one of the parts of the filter, which has commas between them, or is NAME of a part =NAME; "" is part of every name.
bool passes(const std::string& name, const std::string& filter) {
  const std::vector<std::string> parts = CLI::detail::split(filter, ',');
  return parts.empty() || std::any_of(parts.begin(), parts.end(), [&](const std::string& part) {
           return part.starts_with('=') ? name == part.substr(1) : name.find(part) != std::string::npos;
         });
}

/// The shapes whose names pass. A part that none does is a mistake: what there is.
template <class Shape>
std::vector<Shape> chosen(std::vector<Shape> shapes, const std::string& filter, const std::string& where = "") {
  std::string names;
  for (const Shape& s : shapes) names += (names.empty() ? "" : ", ") + s.name;
  for (const std::string& part : CLI::detail::split(filter, ',')) {
    if (std::any_of(shapes.begin(), shapes.end(), [&](const Shape& s) { return passes(s.name, part); })) continue;
    throw CLI::ValidationError("--filter", "got '" + part + "', wanted part of a row's name" + where + ": " + names);
  }
  std::erase_if(shapes, [&](const Shape& s) { return !passes(s.name, filter); });
  return shapes;
}

std::string presets_text(const Options& options) { return fmt::format(" of --preset {}", fmt::join(options.presets, ",")); }

void list_gpu_rows(const Options& options) {
  nlohmann::ordered_json out{{"presets", nlohmann::ordered_json::array()}, {"rows", nlohmann::ordered_json::array()}};
  for (const GpuShape& s : chosen(gpu_bench_shapes(options.presets, !options.even_lengths), options.filter, presets_text(options))) {
    out["rows"].push_back(to_json(s));
    out["rows"].back()["key"] = gpu_kernel_key(run_spec(s), options.steps.arch, s.policy == Policy::fixed_split);
  }
  for (const GpuPreset& p : gpu_presets()) {
    if (std::find(options.presets.begin(), options.presets.end(), p.name) == options.presets.end()) {
      if (options.json != "-") fmt::print("{} (--preset {}): {}\n", p.name, p.name, p.what);
      continue;
    }
    nlohmann::ordered_json names = nlohmann::ordered_json::array();
    if (options.json != "-") fmt::print("{}: {}\n", p.name, p.what);
    for (const GpuShape& s : gpu_bench_shapes({p.name}, !options.even_lengths)) {
      if (!passes(s.name, options.filter)) continue;
      if (options.json != "-") fmt::print("  {}\n", s.name);
      names.push_back(s.name);
    }
    out["presets"].push_back({{"name", p.name}, {"what", p.what}, {"rows", names}});
  }
  if (!options.json.empty()) write_json(options.json, out);
}

void list_cpu_rows(const Options& options) {
  nlohmann::ordered_json out{{"rows", nlohmann::ordered_json::array()}};
  for (const BenchShape& s : chosen(cpu_bench_shapes(), options.filter)) {
    if (options.json != "-") fmt::print("{}\n", s.name);
    out["rows"].push_back({{"shape", s.name}});
  }
  if (!options.json.empty()) write_json(options.json, out);
}

int run(Options options) {
  const bool gpu = options.backend == "cuda";
  for (const auto& [given, name] :
       {std::pair(!options.presets.empty(), "--preset"), {options.even_lengths, "--even-lengths"}, {!options.peers.empty(), "--peers"},
        {!options.kernel.empty(), "--kernel"}, {options.constants, "--constants"}, {!options.steps.file.empty(), "--steps"}}) {
    if (given && !gpu) throw CLI::ValidationError(name, "got it with --backend cpu, wanted --backend cuda");
  }
  if (!options.steps.file.empty()) {
    StepsOptions& s = options.steps;
    for (const auto& [given, name] : {std::pair(!options.presets.empty(), "--preset"), {options.even_lengths, "--even-lengths"}, {options.constants, "--constants"},
                                      {!options.timelines.empty(), "--timeline"}}) {
      if (given) throw CLI::ValidationError(name, "got it with --steps, wanted one of them");
    }
    s.json = options.json, s.peers = options.peers, s.kernel = options.kernel, s.filter = options.filter, s.device = options.device, s.list = options.list;
    return run_steps(s);
  }
  check_timeline_paths(options.timelines);
  if (options.constants && options.presets.empty() && !options.list) return run_gpu(options, {});
  if (options.presets.empty()) options.presets = {"serving"};
  if (options.list) return (gpu ? list_gpu_rows : list_cpu_rows)(options), 0;
  if (gpu) return run_gpu(options, chosen(gpu_bench_shapes(options.presets, !options.even_lengths), options.filter, presets_text(options)));
  if (options.repeat > 0) options.bench.repeat = options.repeat;
  options.bench.timeline = !options.timelines.empty();
  return run_cpu(options, chosen(cpu_bench_shapes(), options.filter)), 0;
}

void add(CLI::App& command, int& exit_code) {
  auto o = std::make_shared<Options>();
  command.add_option("--backend", o->backend, "cpu, cuda")->check(one_of({"cpu", "cuda"}))->capture_default_str();
  command.add_option("--device", o->device, "cuda: which GPU")->check(kNonNegative)->capture_default_str();
  command.add_option("--preset", o->presets, "cuda: which tables of rows, with commas between them: serving (default), paper, hopper, decode, levels, streaming, invariant, plan")
      ->delimiter(',')
      ->check(one_of(gpu_preset_names()));
  command.add_flag("--even-lengths", o->even_lengths, "cuda: without the rows a token shorter and 37 tokens longer than each");
  command.add_flag("--no-ceilings", o->no_ceilings, "cuda: rows alone, without what the GPU can do at most; they have no shares then");
  command.add_flag("--list", o->list, "Print the rows and stop; with --json all that is known of them");
  command.add_option("--threads", o->bench.threads, "cpu: thread counts to measure")->check(kPositive)->capture_default_str();
  command.add_option("--repeat", o->repeat, "Timed runs a row, whose median is reported; default: cpu 7, cuda 12")->check(kPositive);
  command.add_option("--filter", o->filter, "Only shapes whose name contains this, or one of these, with commas between them; =NAME: only that one");
  command.add_option("--cpu-target", o->bench.cpu_target, "cpu: avx512, avx2 or portable; default: the best that runs here")
      ->check(one_of(cpu_target_names()));
  command.add_option("--kernel", o->kernel, "cuda: this family of kernels; default: the fastest")->check(one_of(gpu_family_names()));
  command.add_option("--peers", o->peers, "cuda: what other engines took, by benchmarks/peers/torch_cuda.py: joined into the rows")
      ->type_name("FILE");
  command.add_flag("--constants", o->constants, "cuda: what the planner's cost model is made of; without rows unless --preset names some");
  command.add_option("--steps", o->steps.file, "cuda: the steps in FILE, as replay --export or benchmarks/sample_steps.py writes them, in the place of presets")
      ->type_name("FILE");
  o->steps.schedules = {"auto"};
  command.add_option("--schedules", o->steps.schedules, "--steps: policies (stream-flat: without shared levels), or flat (auto without); the others are compared with the first")
      ->delimiter(',')
      ->check(one_of(schedule_names()))
      ->capture_default_str();
  command.add_option("--model", o->steps.model, "--steps: whose layers")->check(one_of(replay::model_names()))->capture_default_str();
  command.add_option("--arch", o->steps.arch, "--list: keys and plans for this architecture, GPU or not")->capture_default_str();
  command.add_option("--timeline", o->timelines, "Planned and measured times of every item: a picture (FILE.svg) or a Chrome trace (FILE.json); may be given again")
      ->type_name("FILE")
      ->check(names_by(timeline_path_fault));
  command.add_option("--json", o->json, "Write the rows to FILE (- is stdout)")->type_name("FILE");
  command.callback([o, &exit_code] { exit_code = run(*o); });
}

const RegisterCommand registered({"bench", "Measure attention beside this machine's ceilings", add});

}  // namespace
}  // namespace kvloom::cli
