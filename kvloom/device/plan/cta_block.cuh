// A CTA of kThreads as a block of the device's planner (memory.h says what that is).
#pragma once

#include "kvloom/device/plan/shared.h"

namespace kvloom::device_plan {

template <class T>
struct Words {
  static_assert(sizeof(T) % 4 == 0 && sizeof(T) <= kMaxSumBytes);
  uint32_t word[sizeof(T) / 4];
};

/// x of another lane: `lanes` below this one, or across.
template <class T>
__device__ __forceinline__ T from_below(const T& x, int lanes) {
  Words<T> w = __builtin_bit_cast(Words<T>, x);
#pragma unroll
  for (uint32_t& word : w.word) word = __shfl_up_sync(0xffffffffu, word, lanes);
  return __builtin_bit_cast(T, w);
}
template <class T>
__device__ __forceinline__ T from_across(const T& x, int with) {
  Words<T> w = __builtin_bit_cast(Words<T>, x);
#pragma unroll
  for (uint32_t& word : w.word) word = __shfl_xor_sync(0xffffffffu, word, with);
  return __builtin_bit_cast(T, w);
}

/// Sum of this lane's and those below.
template <class T>
__device__ __forceinline__ T warp_sums(T x) {
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const T below = from_below(x, lanes);
    if ((int(threadIdx.x) & 31) >= lanes) x = below + x;
  }
  return x;
}
template <class T>
__device__ __forceinline__ T warp_join(T x) {
#pragma unroll
  for (int with = 16; with > 0; with /= 2) x = T::join(x, from_across(x, with));
  return x;
}

inline constexpr int kWarpKeys = 64;
/// Keys of a bitonic network that a warp has in registers: a lane those at places `place` and `place` + 32.
struct WarpKeys {
  uint64_t key[2];
  int32_t place;

  /// Steps `apart` (32 at most) and less of the stage that makes sorted runs of `run`.
  __device__ __forceinline__ void merge(int32_t run, int apart) {
    if (apart == 32) {
      const bool swap = (key[0] > key[1]) == ((place & run) == 0);
      const uint64_t first = key[0];
      key[0] = swap ? key[1] : first, key[1] = swap ? first : key[1];
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      if (step > apart) continue;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint64_t other = from_across(key[i], step);
        const bool lower = (place & step) == 0, up = ((place + 32 * i) & run) == 0;
        key[i] = (other < key[i]) == (lower == up) ? other : key[i];
      }
    }
  }
};

class CtaBlock {
 public:
  __device__ __forceinline__ explicit CtaBlock(CtaMemory& m) : m_(m), thread_(int(threadIdx.x)), warp_(thread_ >> 5), lane_(thread_ & 31) {}

  template <class F>
  __device__ __forceinline__ void each(int32_t n, F&& f) {
#pragma unroll 1
    for (int32_t i = thread_; i < n; i += kThreads) f(i);
    __syncthreads();
  }
  template <class State, class Read, class Write>
  __device__ __forceinline__ void two_steps(int32_t n, Read&& read, Write&& write) {
    State state;
    if (thread_ < n) read(thread_, state);
    __syncthreads();
    if (thread_ < n) write(thread_, state);
    __syncthreads();
  }
  template <class State, class Sum, class Load, class Store>
  __device__ __forceinline__ Sum scan(int32_t n, Load&& load, Store&& store) {
    Sum before{};
#pragma unroll 1
    for (int32_t first = 0; first < n; first += kThreads) {
      const int32_t i = first + thread_;
      State state;
      Sum own{};
      if (i < n) own = load(i, state);
      const bool busy = first + 32 * warp_ < n;  // the warp has something to add
      const Sum up_to = busy ? warp_sums(own) : own;
      if (lane_ == 31) sums<Sum>()[warp_] = up_to;
      __syncthreads();
      if (warp_ == 0) {
        const Sum of_warp = lane_ < kWarps ? sums<Sum>()[lane_] : Sum{}, to_here = warp_sums(of_warp);
        if (lane_ < kWarps) sums<Sum>()[lane_] = to_here - of_warp;
        if (lane_ == 31) *total<Sum>() = to_here;
      }
      __syncthreads();
      if (i < n) store(i, state, before + sums<Sum>()[warp_] + up_to - own);
      before = before + *total<Sum>();
      __syncthreads();
    }
    return before;
  }
  template <class T>
  __device__ __forceinline__ T reduce(const T& mine) {
    const T of_warp = warp_join(mine);
    if (lane_ == 0) sums<T>()[warp_] = of_warp;
    __syncthreads();
    if (warp_ == 0) {
      const T all = warp_join(lane_ < kWarps ? sums<T>()[lane_] : T{});
      if (lane_ == 0) *total<T>() = all;
    }
    __syncthreads();
    const T all = *total<T>();
    __syncthreads();
    return all;
  }
  __device__ __forceinline__ bool any(bool mine) { return __syncthreads_or(mine) != 0; }
  /// A bitonic network over the next power of two, filled up with what comes last: steps of up to 32 places in a warp's registers, others in shared
  /// memory.
  __device__ __forceinline__ void sort(uint64_t* keys, int32_t n) {
    int32_t size = kWarpKeys;
    while (size < n) size *= 2;
    each(size - n, [&](int32_t i) { keys[n + i] = ~uint64_t(0); });
    each_chunk(keys, size, [&](WarpKeys& chunk) {
#pragma unroll
      for (int run = 2; run <= kWarpKeys; run *= 2) chunk.merge(run, run / 2);
    });
#pragma unroll 1
    for (int32_t run = 2 * kWarpKeys; run <= size; run *= 2) {
#pragma unroll 1
      for (int32_t apart = run / 2; apart >= kWarpKeys; apart /= 2) {
        each(size / 2, [&](int32_t i) {
          const int32_t a = 2 * i - (i & (apart - 1)), b = a + apart;
          const uint64_t x = keys[a], y = keys[b];
          if ((x > y) != ((a & run) == 0)) return;
          keys[a] = y, keys[b] = x;
        });
      }
      each_chunk(keys, size, [&](WarpKeys& chunk) { chunk.merge(run, kWarpKeys / 2); });
    }
  }
  template <class T>
  __device__ __forceinline__ void put(T* to, const T& x) {
    static_assert(sizeof(T) % 16 == 0);
    struct alignas(16) Quads {
      uint4 quad[sizeof(T) / 16];
    };
    const Quads q = __builtin_bit_cast(Quads, x);
#pragma unroll
    for (int i = 0; i < int(sizeof(T) / 16); ++i) reinterpret_cast<uint4*>(to)[i] = q.quad[i];
  }

 private:
  /// f(keys [64 w, 64 w + 64) in the registers of warp w), then they are written back.
  template <class F>
  __device__ __forceinline__ void each_chunk(uint64_t* keys, int32_t size, F&& f) {
#pragma unroll 1
    for (int32_t first = warp_ * kWarpKeys; first < size; first += kWarps * kWarpKeys) {
      WarpKeys chunk{{keys[first + lane_], keys[first + 32 + lane_]}, first + lane_};
      f(chunk);
      keys[first + lane_] = chunk.key[0], keys[first + 32 + lane_] = chunk.key[1];
    }
    __syncthreads();
  }
  template <class T>
  __device__ __forceinline__ T* sums() { return reinterpret_cast<T*>(m_.sums); }
  template <class T>
  __device__ __forceinline__ T* total() { return reinterpret_cast<T*>(m_.total); }

  CtaMemory& m_;
  const int thread_, warp_, lane_;
};

}  // namespace kvloom::device_plan
