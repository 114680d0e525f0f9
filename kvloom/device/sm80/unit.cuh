// What a generated unit is made of: configurations and one variant become kernels and the facts of their launch.
//   attend_memory     plans whose items are all of class 0
//   attend_memory_32  ... with tiles of 32 rows
//   attend_compute    ... all of class 1
//   attend_mixed      both: an item's kernel_class picks the code
//   attend_small      class 0 with the tiles that it has in attend_mixed, where attend_memory has others
// Each is launched as <<<num_ctas, threads, dynamic shared bytes>>>(AttendArgs), and compiled by itself.
#pragma once

#include "kvloom/contract/unit_facts.h"
#include "kvloom/device/sm80/choose.h"
#include "kvloom/device/sm80/run.cuh"

namespace kvloom::sm80 {

/// True if choose.h knows the size of a CTA's shared memory.
template <AttendConfig C, class V>
constexpr bool estimate_holds() {
  UnitSpec s;
  s.rotates_keys = block::has_key<V>();
  constexpr int kBytes = shared_bytes<C, V>();
  return shared_estimate(C, s) >= kBytes && shared_estimate(C, s) <= kBytes + kSharedSlack;
}

template <AttendConfig C, class V>
constexpr KernelFacts facts() {
  static_assert(estimate_holds<C, V>());
  return {C.threads(), int32_t(shared_bytes<C, V>()), C.ctas_per_sm};
}
/// `S`: class 0 beside `C`.
template <AttendConfig S, AttendConfig C, class V>
constexpr KernelFacts mixed_facts() {
  static_assert(S.threads() == C.threads(), "attend_mixed runs both classes with the threads of a CTA");
  return {C.threads(), max_of(facts<S, V>().shared_bytes, facts<C, V>().shared_bytes), C.ctas_per_sm};
}

}  // namespace kvloom::sm80

#define KVLOOM_SM80_KERNEL(kName, kConfig, kRun, kFacts)                                                                              \
  extern "C" __device__ kvloom::KernelFacts kName##_facts = kFacts;                                                                   \
  extern "C" __global__ void __launch_bounds__(kConfig.threads(), kConfig.ctas_per_sm) kName(const __grid_constant__ kvloom::AttendArgs args) { \
    extern __shared__ __align__(128) char kvloom_shared[];                                                                            \
    kRun(args, kvloom_shared);                                                                                                        \
  }
#define KVLOOM_SM80_ATTEND(kName, kConfig, ...) \
  KVLOOM_SM80_KERNEL(kName, kConfig, (kvloom::sm80::block_run<kConfig, __VA_ARGS__>), (kvloom::sm80::facts<kConfig, __VA_ARGS__>()))
#define KVLOOM_SM80_ATTEND_MIXED(kName, kMemory, kCompute, ...)                                          \
  KVLOOM_SM80_KERNEL(kName, kCompute, (kvloom::sm80::block_run_mixed<kMemory, kCompute, __VA_ARGS__>), \
                     (kvloom::sm80::mixed_facts<kMemory, kCompute, __VA_ARGS__>()))
