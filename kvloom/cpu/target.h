// Instruction sets that the CPU kernels are built for, and which of them this machine runs.
#pragma once

#include "kvloom/base/platform.h"

namespace kvloom::cpu {

enum class Target : int32_t { portable = 0, avx2 = 1, avx512 = 2 };
inline constexpr int kNumTargets = 3;

const char* name_of(Target t);  // "portable", "avx2", "avx512"
bool parse_target(const char* name, Target& out);
bool is_available(Target t);  // compiled in, and the processor and OS support it
Target fastest_target();      // of those available
Target best_target();         // the fastest, or what KVLOOM_CPU_TARGET says; invalid_argument if that is none of these, or not available

}  // namespace kvloom::cpu
