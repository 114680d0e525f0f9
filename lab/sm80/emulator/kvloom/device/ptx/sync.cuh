#pragma once
#include "simt.h"
namespace kvloom::ptx {
inline uint32_t atomic_arrive(uint32_t* counter) { return (*counter)++; }
inline void fence_acq_rel_gpu() {}
inline void grid_dependency_wait() {}
inline void grid_dependency_launch() {}
}  // namespace kvloom::ptx
