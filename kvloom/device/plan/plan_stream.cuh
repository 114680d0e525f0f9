// The device's planner, any GPU: kCtas CTAs, whatever the step.
//   plan_stream<<<kCtas, threads_for(lists, num_ctas), sizeof(SharedMemory)>>>(plan::DeviceArgs)
#pragma once

#include "kvloom/device/plan/cta_block.cuh"
#include "kvloom/device/plan/stream.h"
#include "kvloom/device/ptx/sync.cuh"

namespace kvloom::device_plan {

/// Arguments are constants that nobody has read yet, and reading a line of them takes as long as reading memory: a word of each is read ahead. `unused`:
/// the calling thread's.
__device__ __forceinline__ void touch(const plan::DeviceArgs& args, volatile uint32_t& unused) {
  struct Words {
    uint32_t word[sizeof(plan::DeviceArgs) / 4];
  };
  constexpr int kLine = 16;
  uint32_t all = 0;
#pragma unroll
  for (int i = 0; i < int(sizeof(Words) / 4); i += kLine) all ^= reinterpret_cast<const Words&>(args).word[i];
  unused = all;
}

}  // namespace kvloom::device_plan

extern "C" __global__ void __launch_bounds__(kvloom::device_plan::kThreads, 1) plan_stream(const __grid_constant__ kvloom::plan::DeviceArgs args) {
  extern __shared__ __align__(128) char kvloom_shared[];
  auto& shared = *reinterpret_cast<kvloom::device_plan::SharedMemory*>(kvloom_shared);
  kvloom::ptx::grid_dependency_launch();  // a grid behind this one may be put in place; it waits for this one's end
  if (threadIdx.x == 0) kvloom::device_plan::touch(args, shared.cta.totals[0][0][0]);
  kvloom::ptx::grid_dependency_wait();
  kvloom::device_plan::CtaBlock block(shared.cta);
  kvloom::device_plan::plan_step(block, args, shared.memory, shared.tables);
}
