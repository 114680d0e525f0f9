// The planner on a GPU: one kernel a device, loaded once a process, and its launch.
#pragma once

#include "kvloom/plan/device_args.h"
#include "kvloom/runtime/device.h"

namespace kvloom::runtime {

/// Puts the planning of a step into `stream`. The first call of a process for a device compiles (or finds in the cache) and loads the kernel,
/// which is refused under capture.
void launch_plan(const Device& device, const plan::DeviceArgs& args, jit::CuStream stream);

}  // namespace kvloom::runtime
