// kvloom doctor: what this machine is, which backends run here, and what to do about those that don't.
#include "cli/command.h"
#include "cli/report/json_output.h"
#include "cli/report/machine.h"
#include "kvloom/api/gpu.h"
#include "kvloom/api/kernels.h"
#include "kvloom/cpu/target.h"

#include <fmt/core.h>

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
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

/// Why kernels can't be kept in `folder`, which need not be there yet; "": they can.
std::string cache_fault(const std::string& folder) {
  if (folder.empty()) return "no folder for it: name one in KVLOOM_CACHE_DIR";
  std::error_code ignored;
  std::filesystem::path at = std::filesystem::absolute(folder, ignored);
  while (!std::filesystem::exists(at, ignored) && at.has_relative_path()) at = at.parent_path();
  std::string why;
  if (!std::filesystem::is_directory(at, ignored)) {
    why = "is not a folder";
  } else if (access(at.c_str(), W_OK | X_OK) != 0) {
    why = std::string("can't be written: ") + std::strerror(errno);
  }
  return why.empty() ? "" : at.string() + " " + why + "; kernels are compiled in every process: name another in KVLOOM_CACHE_DIR";
}

/// The driver with its GPUs, the compilers, the cache of kernels.
void examine_gpus(std::vector<Finding>& list) {
  std::string why;
  const std::vector<GpuInfo> found = gpus(&why);
  const int32_t version = gpu_driver_version();
  list.push_back({"cuda driver", version > 0,
                  version > 0 ? fmt::format("for CUDA {}.{}", version / 1000, version % 1000 / 10) : "does not serve",
                  why + "; the CPU backend carries on"});
  for (const GpuInfo& g : found) {
    list.push_back({fmt::format("gpu {}", g.device), true,
                    fmt::format("{}, {}, {} SMs, {:.1f} GiB", g.name, g.arch, g.num_sms, double(g.memory_bytes) / (1 << 30)), ""});
  }
  if (found.empty() && version > 0) list.push_back({"gpu", false, "none found", why});
  const CompilerInfo compiler = kernel_compiler();
  const bool can_compile = !compiler.version.empty();
  list.push_back({"kernel compiler", can_compile, can_compile ? fmt::format("{}, {}", compiler.version, compiler.detail) : "no NVRTC",
                  can_compile ? "" : compiler.detail + "\n        kernels that are in the cache run without it"});
  const CompilerInfo host = variant_compiler();
  list.push_back({"c++ compiler", !host.version.empty(), host.version.empty() ? "none" : fmt::format("{}, {}", host.version, host.detail),
                  host.detail + "\n        only variants of your own want it"});
  const std::string folder = kernel_cache_folder(), fault = cache_fault(folder);
  list.push_back(
      {"kernel cache", fault.empty(), folder.empty() ? "none" : fmt::format("{} kernels in {}", cached_kernels().size(), folder), fault});
}

std::vector<Finding> examine(const Machine& m) {
  std::vector<Finding> list;
  list.push_back(
      {"processor", true, fmt::format("{}, {} usable cores, {:.1f} GiB memory", m.cpu, m.cores, double(m.memory_bytes) / (1 << 30)), ""});
  list.push_back({"caches", m.l2_bytes > 0,
                  fmt::format("L1d {} KiB, L2 {} KiB a core, L3 {} KiB", m.l1d_bytes >> 10, m.l2_bytes >> 10, m.l3_bytes >> 10),
                  "sizes unknown: built-in tile sizes are used"});
  const char* const forced = std::getenv("KVLOOM_CPU_TARGET");
  const bool is_forced = forced != nullptr && *forced != '\0';
  cpu::Target used = cpu::fastest_target(), wanted;
  const bool good = is_forced && cpu::parse_target(forced, wanted) && cpu::is_available(wanted);
  if (good) used = wanted;
  for (int t = 0; t < cpu::kNumTargets; ++t) {
    const auto target = static_cast<cpu::Target>(t);
    const bool chosen = target == used && (good || !is_forced);
    list.push_back({fmt::format("cpu target {}", cpu::name_of(target)), cpu::is_available(target), chosen ? "runs here, used" : "runs here",
                    "this processor lacks the instructions; another target is used"});
    if (!list.back().ok) list.back().detail = "does not run here";
  }
  if (is_forced) {
    list.push_back({"KVLOOM_CPU_TARGET", good, forced, "not a target that runs here: engines refuse it; unset it or name one from above"});
  }
  examine_gpus(list);
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
  command.add_option("--json", *json, "Write the findings to FILE (- is stdout)")->type_name("FILE");
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

const RegisterCommand registered({"doctor", "Say what this machine is and which backends run on it", add});

}  // namespace
}  // namespace kvloom::cli
