// The device's planner, any GPU: kCtas CTAs (or fewer), whatever the step.
//   plan_stream<<<kCtas, kThreads, sizeof(SharedMemory)>>>(plan::DeviceArgs)
#pragma once

#include "kvloom/device/plan/cta_block.cuh"
#include "kvloom/device/plan/stream.h"
#include "kvloom/device/ptx/sync.cuh"

extern "C" __global__ void __launch_bounds__(kvloom::device_plan::kThreads, 1) plan_stream(const __grid_constant__ kvloom::plan::DeviceArgs args) {
  extern __shared__ __align__(128) char kvloom_shared[];
  auto& shared = *reinterpret_cast<kvloom::device_plan::SharedMemory*>(kvloom_shared);
  kvloom::ptx::grid_dependency_launch();  // a grid behind this one may be put in place; it waits for this one's end
  kvloom::ptx::grid_dependency_wait();
  kvloom::device_plan::CtaBlock block(shared.cta);
  kvloom::device_plan::plan_step(block, args, shared.memory, shared.tables);
}
