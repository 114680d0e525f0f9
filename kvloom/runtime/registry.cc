#include "kvloom/runtime/registry.h"

#include "kvloom/contract/kernel_key.h"
#include "kvloom/cpu/attend.h"
#include "kvloom/runtime/device.h"
#include "kvloom/runtime/sm80.h"
#include "kvloom/runtime/sm90.h"
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
    {"sm90", Backend::cuda, 4096, 0, {}, nullptr, nullptr, {sm90_refusal, sm90_schedule, sm90_unit, sm90_by_warpgroups}},
    {"sm80", Backend::cuda, 2048, 0, {}, nullptr, nullptr, {sm80_refusal, sm80_schedule, sm80_unit}},
    {"cpu-avx512", Backend::cpu, 64, 3, cpu::Target::avx512, cpu_refusal, cpu::attend},
    {"cpu-avx2", Backend::cpu, 32, 3, cpu::Target::avx2, cpu_refusal, cpu::attend},
    {"cpu-portable", Backend::cpu, 8, 3, cpu::Target::portable, cpu_refusal, cpu::attend},
};

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

void check_family(const char* wanted) {
  std::string names;
  for (const AttendKernel& k : kAttendKernels) {
    if (wanted == nullptr || k.family == std::string_view(wanted)) return;
    names += std::string(names.empty() ? "" : ", ") + k.family;
  }
  fail(ErrorCode::invalid_argument, "Engine: options.kernel: got \"{}\", wanted one of {}; leave it out for the fastest", wanted, names);
}

/// The GPU in question. False: there is none; `why` says so.
bool find_gpu(const Wanted& wanted, GpuTarget& gpu, std::string& why) {
  if (wanted.cuda_arch != nullptr) return gpu = typical_target(wanted.cuda_arch, "Engine: options.cuda_arch"), true;
  if (wanted.backend == Backend::cpu) return why = "the engine's backend is cpu", false;
  if (Device::count(why) == 0) return false;
  gpu = Device::chosen(wanted.device).target();
  return true;
}

/// What stands between a kernel and this call; "" if nothing does.
class Judge {
 public:
  Judge(const AttentionSpec& spec, const Wanted& wanted)
      : spec_(spec), wanted_(wanted), has_gpu_(find_gpu(wanted, gpu_, no_gpu_)), target_(wanted_target(wanted.cpu_target)) {}

  const GpuTarget& gpu() const { return gpu_; }

  std::string why_not(const AttendKernel& k) const {
    if (wanted_.family != nullptr && k.family != std::string_view(wanted_.family)) return kvloom::format("options.kernel asks for {}", wanted_.family);
    return k.backend == Backend::cuda ? why_not_gpu(k) : why_not_cpu(k);
  }

 private:
  std::string why_not_gpu(const AttendKernel& k) const { return has_gpu_ ? k.gpu.refusal(spec_, gpu_, wanted_.fixed_split) : no_gpu_; }
  std::string why_not_cpu(const AttendKernel& k) const {
    if (wanted_.backend == Backend::cuda) {
      const bool would_run = k.target == target_ && cpu::is_available(k.target) && k.cpu_refusal(spec_).empty();
      return std::string("the engine's backend is cuda") + (would_run ? "; with cpu this kernel would run it" : "");
    }
    if (!cpu::is_available(k.target)) return kvloom::format("this processor (or this build) has no {}", cpu::name_of(k.target));
    const std::string refusal = k.cpu_refusal(spec_);
    if (!refusal.empty() || k.target == target_) return refusal;
    if (wanted_.cpu_target != nullptr) return kvloom::format("the caller asked for {}", wanted_.cpu_target);
    if (k.target > target_) return kvloom::format("KVLOOM_CPU_TARGET asks for {}", cpu::name_of(target_));
    return kvloom::format("slower: {} FLOP a cycle of a core; this engine takes {}", k.flop_per_cycle, cpu::name_of(target_));
  }

  const AttentionSpec& spec_;
  const Wanted& wanted_;
  GpuTarget gpu_;
  std::string no_gpu_;
  bool has_gpu_;
  cpu::Target target_;
};

}  // namespace

Span<const AttendKernel> attend_kernels() { return {kAttendKernels, int64_t(std::size(kAttendKernels))}; }

Choice choose_attend(const AttentionSpec& spec, const Wanted& wanted) {
  check_family(wanted.family);
  const Judge judge(spec, wanted);
  Choice choice;
  for (const AttendKernel& kernel : attend_kernels()) {
    const bool own_fixed_split = kernel.backend == Backend::cuda && wanted.fixed_split;
    Candidate c{&kernel, kernel_key("attend", kernel.family, spec, own_fixed_split), judge.why_not(kernel)};
    if (c.declined.empty() && choice.chosen >= 0) {
      c.declined = kvloom::format("{} runs it faster", choice.winner().kernel->family);
    } else if (c.declined.empty()) {
      choice.chosen = int32_t(choice.candidates.size());
      if (kernel.backend == Backend::cuda) {
        choice.unit = kernel.gpu.unit(spec, judge.gpu(), wanted.fixed_split);
        if (wanted.timeline) choice.unit = jit::with_timeline(std::move(choice.unit));
      }
    }
    choice.candidates.push_back(std::move(c));
  }
  choice.gpu = judge.gpu();
  if (choice.chosen >= 0) return choice;
  std::string reasons, others;  // of another backend than the caller asked for: last
  for (const Candidate& c : choice.candidates) {
    const bool other = wanted.backend != Backend::automatic && c.kernel->backend != wanted.backend;
    (other ? others : reasons) += kvloom::format("\n  {}: {}", c.key, c.declined);
  }
  reasons += others;
  if (wanted.cuda_arch != nullptr) fail(ErrorCode::unsupported, "Engine: no kernel runs this spec for {}:{}", wanted.cuda_arch, reasons);
  fail(ErrorCode::unsupported, "Engine: no kernel runs this spec on this machine:{}", reasons);
}

}  // namespace kvloom::runtime
