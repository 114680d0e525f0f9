// Facts of the machine and the build that a result must carry to mean anything.
#pragma once

#include "kvloom/api/gpu.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace kvloom::cli {

struct Machine {
  std::string cpu;      // model name
  std::string targets;  // CPU kernel targets that run here, the chosen one first
  int cores = 0;        // that this process may use
  int64_t memory_bytes = 0;
  int64_t l1d_bytes = 0, l2_bytes = 0, l3_bytes = 0;  // 0: unknown
  std::string os;
  std::string compiler;
  std::string version;  // of kvloom
  std::string commit;   // that was built; "-dirty" if it had changes
};

Machine this_machine();
/// Words of --cpu-target: all of the build's, whether they run here or not.
std::vector<std::string> cpu_target_names();
/// The GPU that --backend cuda and --device ask `command` for. Throws Error: what is missing, or which there are.
GpuInfo gpu_at(int32_t device, const char* command);
nlohmann::ordered_json to_json(const Machine& m);
/// With the versions of its driver and of the compiler of its kernels.
nlohmann::ordered_json to_json(const GpuInfo& g);

}  // namespace kvloom::cli
