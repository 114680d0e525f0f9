// What a generated unit is made of: a configuration and a variant become a kernel and the facts of its launch.
// Launched as <<<num_ctas, threads, dynamic shared bytes>>>(BoxedAttendArgs).
#pragma once

#include "kvloom/contract/unit_facts.h"
#include "kvloom/device/stream/run.cuh"

namespace kvloom::stream {

template <AttendConfig C, class V>
constexpr KernelFacts facts() {
#if defined(__CUDACC__)  // an emulated CTA may have more
  static_assert(shared_bytes<C, V>() <= 227 * 1024, "more shared memory than a CTA can have");
#endif
  return {C.threads(), int32_t(shared_bytes<C, V>()), 1, 1, C.kPieceKeys, 0, C.heads, 128};
}

}  // namespace kvloom::stream

#define KVLOOM_STREAM_ATTEND(kName, kConfig, ...)                                                                                  \
  extern "C" __device__ kvloom::KernelFacts kName##_facts = kvloom::stream::facts<kConfig, __VA_ARGS__>();                         \
  extern "C" __global__ void __launch_bounds__(kConfig.threads(), 1) kName(const __grid_constant__ kvloom::BoxedAttendArgs args) { \
    extern __shared__ __align__(1024) char kvloom_shared[];                                                                        \
    kvloom::stream::block_run<kConfig, __VA_ARGS__>(args, kvloom_shared);                                                          \
  }
