#include "kvloom/cpu/target.h"

#include "kvloom/support/check.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <cstdlib>
#include <cstring>

namespace kvloom::cpu {

const char* name_of(Target t) {
  switch (t) {
    case Target::portable:
      return "portable";
    case Target::avx2:
      return "avx2";
    case Target::avx512:
      return "avx512";
  }
  return "unknown-target";
}

bool parse_target(const char* name, Target& out) {
  for (int i = 0; i < kNumTargets; ++i) {
    if (std::strcmp(name, name_of(static_cast<Target>(i))) == 0) {
      out = static_cast<Target>(i);
      return true;
    }
  }
  return false;
}

#if defined(__x86_64__)
namespace {
/// Conversions of fp16: a bit of its own, which clang 14's __builtin_cpu_supports does not know.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}
}  // namespace
#endif

bool is_available(Target t) {
#if defined(__x86_64__)
  // The compiler's run-time check asks the processor and, for the wide registers, the operating system.
  if (t == Target::avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  if (t == Target::avx512) {
    return is_available(Target::avx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  }
#endif
  return t == Target::portable;
}

Target fastest_target() {
  if (is_available(Target::avx512)) return Target::avx512;
  return is_available(Target::avx2) ? Target::avx2 : Target::portable;
}

Target best_target() {
  static const Target best = [] {
    const char* wanted = std::getenv("KVLOOM_CPU_TARGET");
    if (!wanted || !*wanted) return fastest_target();
    Target forced;
    if (parse_target(wanted, forced) && is_available(forced)) return forced;
    std::string here;
    for (int t = 0; t < kNumTargets; ++t) {
      if (is_available(Target(t))) here.append(here.empty() ? "" : ", ").append(name_of(Target(t)));
    }
    fail(ErrorCode::invalid_argument, "KVLOOM_CPU_TARGET: got \"{}\", wanted a target that runs here: {}; unset it for the best of them",
         wanted, here);
  }();
  return best;
}

}  // namespace kvloom::cpu
