// kvloom doctor: what this machine is, which backends run here, and what to do about those that don't.
#include "cli/command.h"
#include "cli/report/json_output.h"
#include "cli/report/machine.h"
#include "kvloom/cpu/target.h"

#include <fmt/core.h>

#include <dlfcn.h>
#include <cstdlib>
#include <string>

namespace kvloom::cli {
namespace {

/// One line of the report. `ok` false: `remedy` says what to do, and what works without it.
struct Finding {
  std::string what;
  bool ok;
  std::string detail;
  std::string remedy;
};

Finding library(const char* what, const char* file, const char* remedy) {
  void* handle = dlopen(file, RTLD_LAZY | RTLD_LOCAL);
  if (!handle) return {what, false, fmt::format("{} not found", file), remedy};
  dlclose(handle);
  return {what, true, fmt::format("{} loads", file), ""};
}

std::vector<Finding> examine(const Machine& m) {
  std::vector<Finding> list;
  list.push_back(
      {"processor", true, fmt::format("{}, {} usable cores, {:.1f} GiB memory", m.cpu, m.cores, double(m.memory_bytes) / (1 << 30)), ""});
  list.push_back({"caches", m.l2_bytes > 0,
                  fmt::format("L1d {} KiB, L2 {} KiB a core, L3 {} KiB", m.l1d_bytes >> 10, m.l2_bytes >> 10, m.l3_bytes >> 10),
                  "sizes unknown: built-in tile sizes are used"});
  for (int t = 0; t < cpu::kNumTargets; ++t) {
    const auto target = static_cast<cpu::Target>(t);
    const bool chosen = target == cpu::best_target();
    list.push_back({fmt::format("cpu target {}", cpu::name_of(target)), cpu::is_available(target), chosen ? "runs here, used" : "runs here",
                    "this processor lacks the instructions; another target is used"});
    if (!list.back().ok) list.back().detail = "does not run here";
  }
  if (const char* forced = std::getenv("KVLOOM_CPU_TARGET")) {
    cpu::Target t;
    const bool good = cpu::parse_target(forced, t) && cpu::is_available(t);
    list.push_back({"KVLOOM_CPU_TARGET", good, forced, "not a target that runs here: it is ignored; unset it or name one from above"});
  }
  list.push_back(library("cuda driver", "libcuda.so.1", "no NVIDIA driver: the CPU backend carries on; install the driver to use a GPU"));
  return list;
}

void print(const Machine& m, const std::vector<Finding>& findings) {
  fmt::print("kvloom {} ({}), {}\n{}\n\n", m.version, m.commit, m.compiler, m.os);
  for (const Finding& f : findings) {
    fmt::print("  {}  {:<20} {}\n", f.ok ? "ok  " : "none", f.what, f.detail);
    if (!f.ok) fmt::print("        {:<20} {}\n", "", f.remedy);
  }
}

void add(CLI::App& command, int&) {
  auto json = std::make_shared<std::string>();
  command.add_option("--json", *json, "write the findings to FILE (- is stdout)")->type_name("FILE");
  command.callback([json] {
    const Machine m = this_machine();
    const std::vector<Finding> findings = examine(m);
    if (json->empty()) return print(m, findings);
    nlohmann::ordered_json out{{"machine", to_json(m)}, {"findings", nlohmann::ordered_json::array()}};
    for (const Finding& f : findings)
      out["findings"].push_back({{"what", f.what}, {"ok", f.ok}, {"detail", f.detail}, {"remedy", f.ok ? "" : f.remedy}});
    write_json(*json, out);
  });
}

const RegisterCommand registered({"doctor", "say what this machine is and which backends run on it", add});

}  // namespace
}  // namespace kvloom::cli
