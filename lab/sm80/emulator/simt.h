// A GPU's threads on the CPU, for running device code where there is no GPU: each thread of a CTA is a fiber, warps meet in their collective
// instructions, copies of cp.async happen as late as they may (when their thread waits), and shared memory starts as NaN. What a missing
// barrier or wait would break, breaks. x86-64, one CTA at a time.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __shared__
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)

namespace simt {
struct Dim {
  uint32_t x;
};
struct Buffer {
  unsigned char bytes[64];
};

void block_barrier();
/// Meets the lanes of `mask` of the calling warp.
void warp_barrier(uint32_t mask);
/// Deposits `mine`, meets all lanes, and returns what they deposited, by lane.
const Buffer* warp_share(const void* mine, size_t bytes, uint32_t mask = 0xffffffffu);
template <class T>
T from_lane(const Buffer* all, int lane) {
  T x;
  std::memcpy(&x, all[lane & 31].bytes, sizeof x);
  return x;
}

void copy_later(uint32_t to, const void* from, uint32_t bytes, uint32_t total);
void commit_copies();
void wait_copies(int pending);

/// mbarriers at shared addresses. Copies that an arrival waits for happen when somebody waits for the phase.
void barrier_init(uint32_t barrier, uint32_t count);
void barrier_end(uint32_t barrier);
void barrier_arrive(uint32_t barrier);
void arrive_after_copies(uint32_t barrier);
bool barrier_test(uint32_t barrier, uint32_t parity);
void barrier_wait(uint32_t barrier, uint32_t parity);

void barrier_arrive_expect(uint32_t barrier, uint32_t bytes);
/// A box of a tensor, strides[0] the bytes of an element, which lands when somebody waits for the barrier's phase.
struct Box {
  uint32_t to;
  const char* base;
  uint64_t strides[5];
  uint32_t dims[5];
  uint32_t box[5];
  int at[5];
  uint32_t swizzle;
};
void box_later(const Box& box, uint32_t barrier);
/// A box the other way, which is read when its thread waits for that.
void store_later(const Box& box);
void store_wait();
/// Barrier `id` of `threads` threads.
void named_barrier(int id, int threads);

char* shared(uint32_t address);
uint32_t shared_address(const void* p);

/// Runs kernel(args) as `ctas` CTAs of `threads`, one after the other, `shared_bytes` of shared memory each.
void launch(void (*kernel)(const void* args), const void* args, int ctas, int threads, int shared_bytes);
}  // namespace simt

extern simt::Dim threadIdx, blockIdx, blockDim, gridDim;

inline void sincospif(float x, float* s, float* c) { *s = float(std::sin(M_PI * x)), *c = float(std::cos(M_PI * x)); }

inline void __syncthreads() { simt::block_barrier(); }
inline void __syncwarp(uint32_t mask = 0xffffffffu) { simt::warp_barrier(mask); }

inline int __syncthreads_or(int x) {
  static int any;
  __syncthreads();
  if (threadIdx.x == 0) any = 0;
  __syncthreads();
  any |= x;
  __syncthreads();
  return any;
}

template <class T>
T __shfl_sync(uint32_t, T x, int lane) { return simt::from_lane<T>(simt::warp_share(&x, sizeof x), lane); }
template <class T>
T __shfl_xor_sync(uint32_t, T x, int with) { return simt::from_lane<T>(simt::warp_share(&x, sizeof x), int(threadIdx.x & 31) ^ with); }
template <class T>
T __shfl_up_sync(uint32_t, T x, int lanes) {
  const simt::Buffer* all = simt::warp_share(&x, sizeof x);
  const int lane = int(threadIdx.x & 31);
  return lane >= lanes ? simt::from_lane<T>(all, lane - lanes) : x;
}
inline uint32_t __ballot_sync(uint32_t, bool x) {
  const auto* all = simt::warp_share(&x, sizeof x);
  uint32_t r = 0;
  for (int i = 0; i < 32; ++i) r |= uint32_t(simt::from_lane<bool>(all, i)) << i;
  return r;
}
inline bool __any_sync(uint32_t mask, bool x) { return __ballot_sync(mask, x) != 0; }
inline uint32_t __reduce_or_sync(uint32_t, uint32_t x) {
  const simt::Buffer* all = simt::warp_share(&x, sizeof x);
  for (int i = 0; i < 32; ++i) x |= simt::from_lane<uint32_t>(all, i);
  return x;
}
inline int simt_reduce(uint32_t mask, int x, int (*join)(int, int)) {
  const simt::Buffer* all = simt::warp_share(&x, sizeof x, mask);
  for (int i = 0; i < 32; ++i) x = mask >> i & 1 ? join(x, simt::from_lane<int>(all, i)) : x;
  return x;
}
inline int __reduce_max_sync(uint32_t mask, int x) { return simt_reduce(mask, x, [](int a, int b) { return a > b ? a : b; }); }
inline int __reduce_min_sync(uint32_t mask, int x) { return simt_reduce(mask, x, [](int a, int b) { return a < b ? a : b; }); }
inline uint32_t __reduce_max_sync(uint32_t mask, uint32_t x) {  // as signed numbers that lie in the same order
  return uint32_t(__reduce_max_sync(mask, int(x ^ 0x80000000u))) ^ 0x80000000u;
}
inline uint32_t __reduce_add_sync(uint32_t, uint32_t x) {
  const simt::Buffer* all = simt::warp_share(&x, sizeof x);
  x = 0;
  for (int i = 0; i < 32; ++i) x += simt::from_lane<uint32_t>(all, i);
  return x;
}
inline int __popc(uint32_t x) { return __builtin_popcount(x); }
inline bool __all_sync(uint32_t mask, bool x) { return __ballot_sync(mask, x) == 0xffffffffu; }

inline int atomicMax(int* p, int x) { int b = *p; *p = b > x ? b : x; return b; }
inline int atomicMin(int* p, int x) { int b = *p; *p = b < x ? b : x; return b; }
inline uint32_t atomicOr(uint32_t* p, uint32_t x) { uint32_t b = *p; *p = b | x; return b; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int32_t __mulhi(int32_t a, int32_t b) { return int32_t((int64_t(a) * b) >> 32); }
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return uint32_t((uint64_t(a) * b) >> 32); }
inline float __fmaf_rn(float a, float b, float c) { return std::fmaf(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline int __float_as_int(float x) { int i; std::memcpy(&i, &x, 4); return i; }
inline float __int_as_float(int i) { float x; std::memcpy(&x, &i, 4); return x; }

struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) uint2 { uint32_t x, y; };
struct alignas(16) uint4 { uint32_t x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
