#include "kvloom/runtime/registry.h"

#include "kvloom/contract/kernel_key.h"
#include "kvloom/cpu/attend.h"
#include "kvloom/support/check.h"

namespace kvloom::runtime {
namespace {

constexpr int32_t kMinHeadDim = 16, kMaxHeadDim = 576;

/// What no CPU kernel runs, whatever its target.
std::string cpu_refusal(const AttentionSpec& spec) {
  for (const int32_t dim : {spec.head_dim_qk, spec.head_dim_vo}) {
    if (dim < kMinHeadDim) {
      return kvloom::format("head dim {} is below {} (pad with zeros and give sm_scale = 1 / sqrt(real dim))", dim, kMinHeadDim);
    }
    if (dim > kMaxHeadDim) return kvloom::format("head dim {} is above {}", dim, kMaxHeadDim);
  }
  return "";
}

constexpr AttendKernel kAttendKernels[] = {
    {"cpu-avx512", cpu::Target::avx512, 64, cpu_refusal, cpu::attend},
    {"cpu-avx2", cpu::Target::avx2, 32, cpu_refusal, cpu::attend},
    {"cpu-portable", cpu::Target::portable, 8, cpu_refusal, cpu::attend},
};

/// Why `kernel` can't run `spec` here; "" if it can.
std::string why_not(const AttendKernel& kernel, const AttentionSpec& spec) {
  if (!cpu::is_available(kernel.target)) {
    return kvloom::format("this processor (or this build) has no {}", cpu::name_of(kernel.target));
  }
  return kernel.refusal(spec);
}

/// The target that must be used: the caller's word, else what the processor (or KVLOOM_CPU_TARGET) says is best.
cpu::Target wanted_target(const char* wanted) {
  if (wanted == nullptr) return cpu::best_target();
  cpu::Target target;
  if (cpu::parse_target(wanted, target)) return target;
  std::string names;
  for (int t = 0; t < cpu::kNumTargets; ++t) names += std::string(t ? ", " : "") + cpu::name_of(cpu::Target(t));
  fail(ErrorCode::invalid_argument, "Engine: options.cpu_target: got \"{}\", wanted one of {}; leave it out for the best of this machine",
       wanted, names);
}

}  // namespace

Span<const AttendKernel> attend_kernels() { return {kAttendKernels, int64_t(std::size(kAttendKernels))}; }

Choice choose_attend(const AttentionSpec& spec, const char* wanted) {
  const cpu::Target target = wanted_target(wanted);
  Choice choice;
  for (const AttendKernel& kernel : attend_kernels()) {
    Candidate c{&kernel, kernel_key("attend", kernel.family, spec), why_not(kernel, spec)};
    if (c.declined.empty() && kernel.target != target) {
      c.declined = wanted != nullptr
                       ? kvloom::format("the caller asked for {}", wanted)
                       : kvloom::format("{} FLOP a cycle; {} is this machine's target", kernel.flop_per_cycle, cpu::name_of(target));
    }
    if (c.declined.empty()) choice.chosen = int32_t(choice.candidates.size());
    choice.candidates.push_back(std::move(c));
  }
  if (choice.chosen >= 0) return choice;
  std::string reasons;
  for (const Candidate& c : choice.candidates) reasons += kvloom::format("\n  {}: {}", c.key, c.declined);
  fail(ErrorCode::unsupported, "Engine: no kernel runs this spec on this machine:{}", reasons);
}

}  // namespace kvloom::runtime
