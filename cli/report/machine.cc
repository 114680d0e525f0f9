#include "cli/report/machine.h"

#include "cli/generated/commit.h"
#include "kvloom/api/kernels.h"
#include "kvloom/cpu/target.h"
#include "kvloom/support/check.h"

#include <fmt/core.h>

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <fstream>

namespace kvloom::cli {
namespace {

/// The value of the first "key : value" line of a /proc file; "" if there is none.
std::string proc_value(const char* file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || line.compare(0, key.size(), key) != 0) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return int(sysconf(_SC_NPROCESSORS_ONLN));
}

std::string target_list() {
  const cpu::Target best = cpu::fastest_target();
  std::string list = cpu::name_of(best);
  for (int t = cpu::kNumTargets - 1; t >= 0; --t) {
    const auto target = static_cast<cpu::Target>(t);
    if (target != best && cpu::is_available(target)) list.append(" ").append(cpu::name_of(target));
  }
  return list;
}

}  // namespace

Machine this_machine() {
  Machine m;
  m.cpu = proc_value("/proc/cpuinfo", "model name");
  m.targets = target_list();
  m.cores = usable_cores();
  m.memory_bytes = int64_t(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  m.l1d_bytes = std::max<int64_t>(0, sysconf(_SC_LEVEL1_DCACHE_SIZE));
  m.l2_bytes = std::max<int64_t>(0, sysconf(_SC_LEVEL2_CACHE_SIZE));
  m.l3_bytes = std::max<int64_t>(0, sysconf(_SC_LEVEL3_CACHE_SIZE));
  utsname system{};
  if (uname(&system) == 0) m.os = fmt::format("{} {} {}", system.sysname, system.release, system.machine);
#if defined(__clang__)
  m.compiler = "clang " __clang_version__;
#else
  m.compiler = "g++ " __VERSION__;
#endif
  m.version = KVLOOM_VERSION;
  m.commit = KVLOOM_COMMIT;
  return m;
}

std::vector<std::string> cpu_target_names() {
  std::vector<std::string> names;
  for (int t = 0; t < cpu::kNumTargets; ++t) names.push_back(cpu::name_of(cpu::Target(t)));
  return names;
}

GpuInfo gpu_at(int32_t device, const char* command) {
  std::string why;
  const std::vector<GpuInfo> list = gpus(&why);
  if (list.empty()) fail(ErrorCode::unsupported, "{}: --backend cuda: {}", command, why);
  require(device >= 0 && device < int32_t(list.size()), "{}: --device: got {}, wanted 0 .. {}", command, device, list.size() - 1);
  return list[size_t(device)];
}

nlohmann::ordered_json to_json(const Machine& m) {
  return {
      {"cpu", m.cpu},           {"targets", m.targets},   {"cores", m.cores}, {"memory_bytes", m.memory_bytes}, {"l1d_bytes", m.l1d_bytes},
      {"l2_bytes", m.l2_bytes}, {"l3_bytes", m.l3_bytes}, {"os", m.os},       {"compiler", m.compiler},         {"version", m.version},
      {"commit", m.commit}};
}

nlohmann::ordered_json to_json(const GpuInfo& g) {
  return {{"name", g.name},
          {"arch", g.arch},
          {"sms", g.num_sms},
          {"clock_khz", g.clock_khz},
          {"memory_bytes", g.memory_bytes},
          {"l2_bytes", g.l2_bytes},
          {"driver_cuda", gpu_driver_version()},
          {"compiler", kernel_compiler().version}};
}

}  // namespace kvloom::cli
