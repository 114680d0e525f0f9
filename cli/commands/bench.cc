// kvloom bench: measured rows beside the ceilings of the same run.
#include "cli/bench/cpu_rows.h"
#include "cli/command.h"
#include "cli/report/json_output.h"
#include "cli/report/machine.h"
#include "kvloom/support/check.h"

#include <fmt/core.h>

#include <cstdio>

namespace kvloom::cli {
namespace {

struct Options {
  std::string backend = "cpu";
  std::string json;
  BenchOptions bench;
};

void run(const Options& options) {
  require(options.backend == "cpu", "bench: --backend: got \"{}\", wanted cpu", options.backend);
  const bool table = options.json != "-";
  if (table)
    fmt::print("{:<50} {:>3} {:>12} {:>8} {:>9}  {:>8} {:>9}  {:>6}  {}\n", "shape", "T", "median us", "GB/s", "GFLOP/s", "of GB/s",
               "of GFLOP/s", "share", "p10 - p90");
  const std::vector<BenchRow> rows = run_cpu_bench(options.bench, [&](const BenchRow& r) {
    if (!table) return;
    fmt::print("{:<50} {:>3} {:>12.1f} {:>8.2f} {:>9.1f}  {:>8.1f} {:>9.1f}  {:>5.1f}%  {:.0f} - {:.0f}%\n", r.shape, r.threads, r.median_us, r.gbps,
               r.gflops, r.ceiling_gbps, r.ceiling_gflops, 100 * r.share,
               100 * r.share_p10, 100 * r.share_p90);
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
  command.add_option("--backend", o->backend, "cpu")->capture_default_str();
  command.add_option("--threads", o->bench.threads, "thread counts to measure")->capture_default_str();
  command.add_option("--repeat", o->bench.repeat, "timed runs a row; the median is reported")->capture_default_str();
  command.add_option("--filter", o->bench.filter, "only shapes whose name contains this");
  command.add_option("--cpu-target", o->bench.cpu_target, "avx512, avx2 or portable; default: the best that runs here");
  command.add_option("--json", o->json, "write the rows to FILE (- is stdout)")->type_name("FILE");
  command.callback([o] { run(*o); });
}

const RegisterCommand registered({"bench", "measure attention beside this machine's ceilings", add});

}  // namespace
}  // namespace kvloom::cli
