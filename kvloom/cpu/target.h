// Instruction sets that the CPU kernels are built for, and which of them this machine runs.
#pragma once

#include "kvloom/base/platform.h"

namespace kvloom::cpu {

enum class Target : int32_t { portable = 0, avx2 = 1, avx512 = 2 };
inline constexpr int kNumTargets = 3;

const char* name_of(Target t);  // "portable", "avx2", "avx512"
bool parse_target(const char* name, Target& out);
bool is_available(Target t);  // compiled in, and the processor and OS support it
Target best_target();         // the fastest available; KVLOOM_CPU_TARGET overrides (ignored, with a note on stderr, if not available)

}  // namespace kvloom::cpu
