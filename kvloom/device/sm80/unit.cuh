// What a generated unit is made of: configurations and one variant become three kernels and the facts of their launch.
//   attend_memory   plans whose items are all of class 0
//   attend_compute  ... all of class 1
//   attend_mixed    both: an item's kernel_class picks the code
// Each is launched as <<<num_ctas, threads, dynamic shared bytes>>>(AttendArgs); kvloom_facts has these numbers, three a kernel. Steps of class
// 0 alone may have tiles of their own: kMemory, with other tiles and threads than kMixedMemory, which shares a CTA with kCompute.
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

#define KVLOOM_SM80_ATTEND(kMemory, kMixedMemory, kCompute, ...)                                                                      \
  static_assert(kvloom::sm80::estimate_holds<kMemory, __VA_ARGS__>() && kvloom::sm80::estimate_holds<kMixedMemory, __VA_ARGS__>() &&  \
                kvloom::sm80::estimate_holds<kCompute, __VA_ARGS__>());                                                               \
  static_assert(kMixedMemory.threads() == kCompute.threads(), "attend_mixed runs both classes with the threads of a CTA");            \
  extern "C" __global__ void __launch_bounds__(kMemory.threads(), kMemory.ctas_per_sm)                                                \
      attend_memory(const __grid_constant__ kvloom::AttendArgs args) {                                                                \
    extern __shared__ __align__(128) char kvloom_shared[];                                                                            \
    kvloom::sm80::block_run<kMemory, __VA_ARGS__>(args, kvloom_shared);                                                               \
  }                                                                                                                                   \
  extern "C" __global__ void __launch_bounds__(kCompute.threads(), kCompute.ctas_per_sm)                                              \
      attend_compute(const __grid_constant__ kvloom::AttendArgs args) {                                                               \
    extern __shared__ __align__(128) char kvloom_shared[];                                                                            \
    kvloom::sm80::block_run<kCompute, __VA_ARGS__>(args, kvloom_shared);                                                              \
  }                                                                                                                                   \
  extern "C" __global__ void __launch_bounds__(kCompute.threads(), kCompute.ctas_per_sm)                                              \
      attend_mixed(const __grid_constant__ kvloom::AttendArgs args) {                                                                 \
    extern __shared__ __align__(128) char kvloom_shared[];                                                                            \
    kvloom::sm80::block_run_mixed<kMixedMemory, kCompute, __VA_ARGS__>(args, kvloom_shared);                                          \
  }                                                                                                                                   \
  extern "C" __device__ int32_t kvloom_facts[16] = {                                                                                  \
      kMemory.threads(),  int32_t(kvloom::sm80::shared_bytes<kMemory, __VA_ARGS__>()),  kMemory.ctas_per_sm,                          \
      kCompute.threads(), int32_t(kvloom::sm80::shared_bytes<kCompute, __VA_ARGS__>()), kCompute.ctas_per_sm,                         \
      kCompute.threads(), int32_t(kvloom::max_of(kvloom::sm80::shared_bytes<kMixedMemory, __VA_ARGS__>(), kvloom::sm80::shared_bytes<kCompute, __VA_ARGS__>())), \
      kCompute.ctas_per_sm, kMemory.tile_rows, kMemory.tile_kv, kCompute.tile_rows, kCompute.tile_kv, kMixedMemory.tile_kv, 0, 0};
