// What a GPU kernel is chosen for: a chip, whether it is in this machine or not.
#pragma once

#include "kvloom/base/platform.h"

#include <string>

namespace kvloom::runtime {

struct GpuTarget {
  int32_t device = -1;     // ordinal; -1: no device, the choice is by architecture alone
  std::string arch;        // "sm_90a": what is compiled for
  int32_t capability = 0;  // 90
  int32_t num_sms = 0;
  int32_t shared_bytes_block = 0;  // most a CTA may ask for
  int32_t shared_bytes_sm = 0;
  std::string name;  // "NVIDIA H200", or what the architecture is usually called
};

/// A typical chip of an architecture, for plans and explanations without a device. Throws invalid_argument for a malformed one;
/// `where`: the option that it came by.
GpuTarget typical_target(const std::string& arch, const char* where = "jit: arch");

/// What a chip does at most, for explanations alone: nothing is chosen or planned by it.
struct GpuRoofs {
  const char* chip = nullptr;  // nullptr: not known
  double tflops = 0.0;         // f16 and bf16 products of mma.sync, dense
  double gbps = 0.0;           // read from memory
  bool measured = false;       // else the vendor's data sheet
  double wgmma_tflops = 0.0;   // the same products by warpgroups, where a family uses them
};

/// Of a typical chip of exactly this compute capability.
GpuRoofs typical_roofs(int32_t capability);

}  // namespace kvloom::runtime
