// What a generated unit is made of: configurations and one variant become kernels and the facts of their launch.
//   attend_memory   plans whose items are all of class 0
//   attend_compute  ... all of class 1
//   attend_mixed    both: an item's kernel_class picks the code
//   attend_small    class 0 with the tiles that it has in attend_mixed, where attend_memory has others (KVLOOM_SM80_ATTEND_APART)
// Each is launched as <<<num_ctas, threads, dynamic shared bytes>>>(AttendArgs). kvloom_facts has these numbers and the CTAs an SM, three a
// kernel; then rows and keys of the tiles of attend_memory and attend_compute, keys of attend_mixed's class 0, and for attend_small (whose
// threads are those of attend_compute) its shared bytes, 0 if there is none, and CTAs an SM.
#pragma once

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

}  // namespace kvloom::sm80

#define KVLOOM_SM80_KERNEL(kName, kConfig, kRun)                                                                                      \
  extern "C" __global__ void __launch_bounds__(kConfig.threads(), kConfig.ctas_per_sm) kName(const __grid_constant__ kvloom::AttendArgs args) { \
    extern __shared__ __align__(128) char kvloom_shared[];                                                                            \
    kRun(args, kvloom_shared);                                                                                                        \
  }

#define KVLOOM_SM80_BYTES(kConfig, ...) int32_t(kvloom::sm80::shared_bytes<kConfig, __VA_ARGS__>())

#define KVLOOM_SM80_ATTEND_ALL(kMemory, kMixedMemory, kCompute, kSmallBytes, kSmallCtas, ...)                                         \
  static_assert(kvloom::sm80::estimate_holds<kMemory, __VA_ARGS__>() && kvloom::sm80::estimate_holds<kMixedMemory, __VA_ARGS__>() &&  \
                kvloom::sm80::estimate_holds<kCompute, __VA_ARGS__>());                                                               \
  static_assert(kMixedMemory.threads() == kCompute.threads(), "attend_mixed runs both classes with the threads of a CTA");            \
  KVLOOM_SM80_KERNEL(attend_memory, kMemory, (kvloom::sm80::block_run<kMemory, __VA_ARGS__>))                                         \
  KVLOOM_SM80_KERNEL(attend_compute, kCompute, (kvloom::sm80::block_run<kCompute, __VA_ARGS__>))                                      \
  KVLOOM_SM80_KERNEL(attend_mixed, kCompute, (kvloom::sm80::block_run_mixed<kMixedMemory, kCompute, __VA_ARGS__>))                    \
  extern "C" __device__ int32_t kvloom_facts[16] = {                                                                                  \
      kMemory.threads(),   KVLOOM_SM80_BYTES(kMemory, __VA_ARGS__),  kMemory.ctas_per_sm,                                             \
      kCompute.threads(),  KVLOOM_SM80_BYTES(kCompute, __VA_ARGS__), kCompute.ctas_per_sm,                                            \
      kCompute.threads(),  kvloom::max_of(KVLOOM_SM80_BYTES(kMixedMemory, __VA_ARGS__), KVLOOM_SM80_BYTES(kCompute, __VA_ARGS__)), kCompute.ctas_per_sm, \
      kMemory.tile_rows,   kMemory.tile_kv, kCompute.tile_rows, kCompute.tile_kv, kMixedMemory.tile_kv, kSmallBytes, kSmallCtas};

#define KVLOOM_SM80_ATTEND(kMemory, kCompute, ...) KVLOOM_SM80_ATTEND_ALL(kMemory, kMemory, kCompute, 0, 0, __VA_ARGS__)

#define KVLOOM_SM80_ATTEND_APART(kMemory, kMixedMemory, kCompute, ...)                                                                \
  KVLOOM_SM80_ATTEND_ALL(kMemory, kMixedMemory, kCompute, KVLOOM_SM80_BYTES(kMixedMemory, __VA_ARGS__), kMixedMemory.ctas_per_sm, __VA_ARGS__) \
  KVLOOM_SM80_KERNEL(attend_small, kMixedMemory, (kvloom::sm80::block_run<kMixedMemory, __VA_ARGS__>))
