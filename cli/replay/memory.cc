#include "cli/replay/memory.h"

#include <sys/resource.h>
#include <fstream>
#include <string>

namespace kvloom::replay {
namespace {

/// The value in kB of the line "key:   n kB" of a /proc file, in bytes; 0 if there is none.
int64_t proc_bytes(const char* file, const std::string& key) {
  std::ifstream in(file);
  for (std::string word; in >> word;) {
    if (word != key) continue;
    int64_t kilobytes = 0;
    return in >> kilobytes ? kilobytes * 1024 : 0;
  }
  return 0;
}

}  // namespace

int64_t available_memory() { return proc_bytes("/proc/meminfo", "MemAvailable:"); }

void reset_peak_rss() {
  std::ofstream out("/proc/self/clear_refs");
  out << "5";
}

int64_t peak_rss() {
  const int64_t high_water = proc_bytes("/proc/self/status", "VmHWM:");
  if (high_water > 0) return high_water;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t(usage.ru_maxrss) * 1024;
}

}  // namespace kvloom::replay
