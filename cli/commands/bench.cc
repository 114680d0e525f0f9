// kvloom bench: measured rows beside the ceilings of the same run.
#include "cli/bench/cpu_rows.h"
#include "cli/bench/gpu_rows.h"
#include "cli/command.h"
#include "cli/report/json_output.h"
#include "cli/report/machine.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>

namespace kvloom::cli {
namespace {

struct Options {
  std::string backend = "cpu";
  std::string json;
  BenchOptions bench;
  int32_t device = 0;
};

void run_gpu(const Options& options) {
  const GpuInfo gpu = gpu_at(options.device, "bench");
  const bool table = options.json != "-";
  const GpuCeilings ceilings = measure_gpu_ceilings(options.device);
  if (table) {
    fmt::print(
        "{}: read {:.2f} TB/s, copy {:.2f} TB/s, products (bf16 mma.sync) {:.0f} TFLOP/s\n{:<46} {:>11} {:>7} {:>8} {:>6} {:>9} {:>9}  "
        "{:<11} {}\n",
        gpu.name, ceilings.read_tbps, ceilings.copy_tbps, ceilings.products_tflops, "shape", "median us", "TB/s", "TFLOP/s", "share",
        "plan us", "run us", "policy", "p10 - p90 us");
  }
  GpuBenchOptions bench;
  bench.device = options.device;
  bench.repeat = std::max(3, options.bench.repeat);
  bench.filter = options.bench.filter;
  const std::vector<GpuBenchRow> rows = run_gpu_bench(bench, ceilings, [&](const GpuBenchRow& r) {
    if (!table) return;
    fmt::print("{:<46} {:>11.1f} {:>7.3f} {:>8.1f} {:>5.0f}% {:>9.1f} {:>9.1f}  {:<11} {:.1f} - {:.1f}\n", r.shape, r.median_us, r.tbps,
               r.tflops, 100.0 * r.share, r.plan_us, r.run_host_us, r.policy, r.p10_us, r.p90_us);
    std::fflush(stdout);
  });
  if (options.json.empty()) return;
  nlohmann::ordered_json out{{"machine", to_json(this_machine())},
                             {"gpu", to_json(gpu)},
                             {"ceilings", to_json(ceilings)},
                             {"repeat", bench.repeat},
                             {"rows", nlohmann::ordered_json::array()}};
  for (const GpuBenchRow& r : rows) out["rows"].push_back(to_json(r));
  write_json(options.json, out);
}

void run(const Options& options) {
  if (options.backend == "cuda") return run_gpu(options);
  const bool table = options.json != "-";
  bool headed = false;  // with the first row: a refusal stands alone
  const std::vector<BenchRow> rows = run_cpu_bench(options.bench, [&](const BenchRow& r) {
    if (!table) return;
    if (!headed) {
      fmt::print("{:<50} {:>3} {:>12} {:>8} {:>9}  {:>8} {:>9}  {:>6}  {}\n", "shape", "T", "median us", "GB/s", "GFLOP/s", "of GB/s",
                 "of GFLOP/s", "share", "p10 - p90");
    }
    headed = true;
    fmt::print("{:<50} {:>3} {:>12.1f} {:>8.2f} {:>9.1f}  {:>8.1f} {:>9.1f}  {:>5.1f}%  {:.0f} - {:.0f}%\n", r.shape, r.threads,
               r.median_us, r.gbps, r.gflops, r.ceiling_gbps, r.ceiling_gflops, 100 * r.share, 100 * r.share_p10, 100 * r.share_p90);
    std::fflush(stdout);
  });
  if (options.json.empty()) return;
  nlohmann::ordered_json out{
      {"machine", to_json(this_machine())}, {"repeat", options.bench.repeat}, {"rows", nlohmann::ordered_json::array()}};
  for (const BenchRow& r : rows) out["rows"].push_back(to_json(r));
  write_json(options.json, out);
}

void add(CLI::App& command, int&) {
  auto o = std::make_shared<Options>();
  command.add_option("--backend", o->backend, "cpu, cuda")->check(one_of({"cpu", "cuda"}))->capture_default_str();
  command.add_option("--device", o->device, "cuda: which GPU")->check(kNonNegative)->capture_default_str();
  command.add_option("--threads", o->bench.threads, "cpu: thread counts to measure")->check(kPositive)->capture_default_str();
  command.add_option("--repeat", o->bench.repeat, "Timed runs a row; the median is reported")->check(kPositive)->capture_default_str();
  command.add_option("--filter", o->bench.filter, "Only shapes whose name contains this");
  command.add_option("--cpu-target", o->bench.cpu_target, "cpu: avx512, avx2 or portable; default: the best that runs here")
      ->check(one_of(cpu_target_names()));
  command.add_option("--json", o->json, "Write the rows to FILE (- is stdout)")->type_name("FILE");
  command.callback([o] { run(*o); });
}

const RegisterCommand registered({"bench", "Measure attention beside this machine's ceilings", add});

}  // namespace
}  // namespace kvloom::cli
