// What a kernel of the mixed family is specialised for: how it does items of few rows and those of many.
#pragma once

#include "kvloom/device/sm90/config.h"
#include "kvloom/device/stream/config.h"

namespace kvloom::mixed {

struct AttendConfig {
  stream::AttendConfig few;  // of class 0
  sm90::AttendConfig many;   // of class 1; one CTA, of as many warps

  KVLOOM_HD constexpr int threads() const { return few.threads(); }
  // Registers a thread: what the kernel is launched with, handed out anew between the warps that load and those that compute.
  KVLOOM_HD constexpr int launch_registers() const { return few.launch_registers(); }
  KVLOOM_HD constexpr int loader_registers() const { return few.gathers && !fills_registers() ? 72 : 56; }
  KVLOOM_HD constexpr int compute_registers() const { return few.gathers && !fills_registers() ? 216 : 224; }
  /// Q, O, scores and weights of many rows take all that those who compute can have.
  KVLOOM_HD constexpr bool fills_registers() const { return many.q_in_registers && many.head_dim_vo > 96; }
};

}  // namespace kvloom::mixed
