// What this machine can do at most, measured now: fp32 multiply-adds from registers, and a linear read of memory. Every figure of a
// report stands beside them, since a machine's speed of this minute is part of the figure.
#pragma once

#include "cli/bench/region.h"

#include <cstdint>

namespace kvloom {
class ThreadPool;
}

namespace kvloom::cli {

/// GFLOP/s (a multiply-add is two) of independent chains in registers on every thread of the pool, over about `seconds`.
double measure_fma_gflops(ThreadPool& pool, double seconds = 0.05);

/// GB/s (1e9 bytes) of one linear pass over a region, every thread its own part.
double measure_read_gbps(ThreadPool& pool, const Region& region);

/// Memory to read: at least several times the last-level cache. Allocated and touched once, then read by any number of measurements.
class ReadCeiling {
 public:
  explicit ReadCeiling(int64_t bytes = int64_t(512) << 20);

  double measure_gbps(ThreadPool& pool) { return measure_read_gbps(pool, memory_); }

 private:
  Region memory_;
};

struct Ceilings {
  double read_gbps = 0.0;
  double fma_gflops = 0.0;
};

/// The best of `rounds` measurements of each.
Ceilings measure_ceilings(ThreadPool& pool, ReadCeiling& memory, int rounds = 5);

}  // namespace kvloom::cli
