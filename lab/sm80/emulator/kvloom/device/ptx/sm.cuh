#pragma once
#include "simt.h"

#include <ctime>
namespace kvloom::ptx {
inline uint32_t sm_id() { return blockIdx.x; }
inline uint64_t nanoseconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return uint64_t(t.tv_sec) * 1000000000u + uint64_t(t.tv_nsec);
}
}  // namespace kvloom::ptx
