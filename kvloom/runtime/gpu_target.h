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

}  // namespace kvloom::runtime
