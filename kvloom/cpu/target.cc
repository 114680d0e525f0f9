#include "kvloom/cpu/target.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <cstdio>
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

Target best_target() {
  static const Target best = [] {
    Target fastest = Target::portable;
    if (is_available(Target::avx2)) fastest = Target::avx2;
    if (is_available(Target::avx512)) fastest = Target::avx512;
    const char* wanted = std::getenv("KVLOOM_CPU_TARGET");
    if (!wanted || !*wanted) return fastest;
    Target forced;
    if (parse_target(wanted, forced) && is_available(forced)) return forced;
    std::fprintf(stderr,
                 "kvloom: KVLOOM_CPU_TARGET: got \"%s\", which this machine can't run; using %s (portable, avx2 and avx512 exist)\n",
                 wanted, name_of(fastest));
    return fastest;
  }();
  return best;
}

}  // namespace kvloom::cpu
