// What a generated unit is made of: a configuration and a variant become a kernel and the facts of its launch.
// Launched as <<<num_ctas, threads, dynamic shared bytes>>>(BoxedAttendArgs).
#pragma once

#include "kvloom/contract/unit_facts.h"
#include "kvloom/device/mixed/run.cuh"

namespace kvloom::mixed {

/// Boxes are pieces of the few rows' kind: tiles of the other are made of some.
template <AttendConfig C, class V>
constexpr KernelFacts facts() {
#if defined(__CUDACC__)  // an emulated CTA may have more
  static_assert(shared_bytes<C, V>() <= 227 * 1024, "more shared memory than a CTA can have");
#endif
  return {C.threads(), int32_t(shared_bytes<C, V>()), 1, 1, C.few.kPieceKeys, C.many.tile_rows, C.few.heads, 128};
}

}  // namespace kvloom::mixed

#define KVLOOM_MIXED_ATTEND(kName, kConfig, ...)                                                                                   \
  extern "C" __device__ kvloom::KernelFacts kName##_facts = kvloom::mixed::facts<kConfig, __VA_ARGS__>();                          \
  extern "C" __global__ void __launch_bounds__(kConfig.threads(), 1) kName(const __grid_constant__ kvloom::BoxedAttendArgs args) { \
    extern __shared__ __align__(1024) char kvloom_shared[];                                                                        \
    kvloom::mixed::block_run<kConfig, __VA_ARGS__>(args, kvloom_shared);                                                           \
  }
