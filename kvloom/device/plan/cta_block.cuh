// A CTA of kThreads, of gridDim.x alike, as a block of the device's planner (memory.h says what that is).
#pragma once

#include "kvloom/device/plan/cta_sums.cuh"

namespace kvloom::device_plan {

inline constexpr int kWarpKeys = 64;
/// Keys of a bitonic network that a warp has in registers: a lane those at places `place` and `place` + 32.
struct WarpKeys {
  uint64_t key[2];
  int32_t place;

  /// The key of another lane.
  __device__ __forceinline__ static uint64_t across(uint64_t key, int with) { return __shfl_xor_sync(0xffffffffu, static_cast<unsigned long long>(key), with); }

  /// Steps `apart` (32 at most) and less of the stage that makes sorted runs of `run`.
  __device__ __forceinline__ void merge(int32_t run, int apart) {
    if (apart == 32) {
      const bool swap = (key[0] > key[1]) == ((place & run) == 0);
      const uint64_t first = key[0];
      key[0] = swap ? key[1] : first, key[1] = swap ? first : key[1];
    }
#pragma unroll 1
    for (int step = min_of(apart, 16); step > 0; step /= 2) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint64_t other = across(key[i], step);
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
    for (int32_t i = thread_; i < n; i += int32_t(blockDim.x)) f(i);
    __syncthreads();
  }
  template <class F>
  __device__ __forceinline__ void each_out(int32_t n, F&& f) {
#pragma unroll 1
    for (int32_t i = int32_t(blockIdx.x * blockDim.x) + thread_; i < n; i += int32_t(gridDim.x * blockDim.x)) f(i);
  }
  template <class F>
  __device__ __forceinline__ void once(F&& f) {
    if (blockIdx.x + 1 == gridDim.x && thread_ == int(blockDim.x) - 1) f();
  }
  __device__ __forceinline__ bool writes(int32_t i) const { return ((uint32_t(i) / 32) & (gridDim.x - 1)) == blockIdx.x; }
  template <class State, class Read, class Write>
  __device__ __forceinline__ void two_steps(int32_t n, Read&& read, Write&& write) {
    State state;
    if (thread_ < n) read(thread_, state);
    __syncthreads();
    if (thread_ < n) write(thread_, state);
    __syncthreads();
  }
  template <class State, class F>
  __device__ __forceinline__ int32_t settle(int32_t n, F&& step) {
    State state;
    int32_t round = 0;
    bool moved = true;
#pragma unroll 1
    for (; moved; ++round) {
      const bool mine = thread_ < n && step(thread_, state, round);
      moved = __syncthreads_or(mine || round == 0) != 0;
    }
    return round;
  }
  template <class State, class Load, class Store>
  __device__ __forceinline__ auto scan(int32_t n, Load&& load, Store&& store) {
    return scan_telling<State>(n, load, store, [] {});
  }
  /// What is largest is told with the last sums, behind the same barrier.
  template <class State, class T, int kCount, class Load, class Store>
  __device__ __forceinline__ auto scan_most(int32_t n, T (&mine)[kCount], Load&& load, Store&& store) {
    const auto sum = scan_telling<State>(n, load, store, [&] { tell_most(mine); });
    hear_most(mine);
    return sum;
  }
  template <class State, int kCount, int kTotals, class Load, class Store>
  __device__ __forceinline__ auto scan_most(int32_t n, uint32_t (&mine)[kCount], uint32_t (&totals)[kTotals], Load&& load, Store&& store) {
    const auto sum = scan_telling<State>(n, load, store, [&] {
      tell_most(mine);
#pragma unroll
      for (int k = 0; k < kTotals; ++k) {
        const uint32_t of_warp = __reduce_add_sync(0xffffffffu, totals[k]);
        if (lane_ == 0) m_.totals[turn_][k][warp_] = of_warp;
      }
    });
    hear_most(mine);
#pragma unroll
    for (int k = 0; k < kTotals; ++k) totals[k] = __reduce_add_sync(0xffffffffu, lane_ < warps() ? m_.totals[turn_][k][lane_] : 0);
    return sum;
  }
  template <class T, int kCount>
  __device__ __forceinline__ void most(T (&mine)[kCount]) {
    turn_ ^= 1;
    tell_most(mine);
    __syncthreads();
    hear_most(mine);
  }
  __device__ __forceinline__ bool any(bool mine) { return __syncthreads_or(mine) != 0; }
  /// Each key to its place, which is the number of smaller ones, where there is a thread for each; else a bitonic network over the next power of two, filled
  /// up with what comes last: steps of up to 32 places in a warp's registers, others in shared memory.
  __device__ __forceinline__ void sort(uint64_t* keys, int32_t n) {
    if (n <= int32_t(blockDim.x)) return place_by_rank(keys, n);
    int32_t size = kWarpKeys;
    while (size < n) size *= 2;
    each(size - n, [&](int32_t i) { keys[n + i] = ~uint64_t(0); });
#pragma unroll 1
    for (int32_t run = kWarpKeys; run <= size; run *= 2) {
#pragma unroll 1
      for (int32_t apart = run / 2; apart >= kWarpKeys; apart /= 2) {
        each(size / 2, [&](int32_t i) {
          const int32_t a = 2 * i - (i & (apart - 1)), b = a + apart;
          const uint64_t x = keys[a], y = keys[b];
          if ((x > y) != ((a & run) == 0)) return;
          keys[a] = y, keys[b] = x;
        });
      }
      each_chunk(keys, size, [&](WarpKeys& chunk) {
#pragma unroll 1
        for (int32_t sorted = run == kWarpKeys ? 2 : run; sorted <= run; sorted *= 2) chunk.merge(sorted, min_of(sorted / 2, kWarpKeys / 2));
      });
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
  __device__ __forceinline__ void place_by_rank(uint64_t* keys, int32_t n) {
    const uint64_t own = thread_ < n ? keys[thread_] : 0;
    int32_t rank = 0;
#pragma unroll 8
    for (int32_t i = 0; i < n; ++i) rank += keys[i] < own ? 1 : 0;
    __syncthreads();
    if (thread_ < n) keys[rank] = own;
    __syncthreads();
  }
  __device__ __forceinline__ static int warps() { return int(blockDim.x) / 32; }
  __device__ __forceinline__ Sum* told(const Sum&) { return m_.sums[turn_]; }
  __device__ __forceinline__ uint64_t* told(uint64_t) { return m_.counts[turn_]; }
  /// A scan. tell() is called before the last of its barriers but one; there may be others to come between what it tells and who hears it.
  template <class State, class Load, class Store, class Tell>
  __device__ __forceinline__ auto scan_telling(int32_t n, Load&& load, Store&& store, Tell&& tell) {
    State* const no_state = nullptr;
    using T = decltype(load(0, *no_state));
    T before{};
    int32_t first = 0;
#pragma unroll 1
    do {
      const int32_t i = first + thread_;
      State state;
      T own{};
      if (i < n) own = load(i, state);
      first += int32_t(blockDim.x);
      turn_ ^= 1;
      if (first >= n) tell();
      const SumsOfCta<T> sums = cta_sums(told(own), own);
      if (i < n) store(i, state, T(before + sums.before));
      before = before + sums.all;
    } while (first < n);
    __syncthreads();
    return before;
  }
  template <class T, int kCount>
  __device__ __forceinline__ void tell_most(const T (&mine)[kCount]) {
    static_assert(kCount <= kMaxMost);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const T of_warp = warp_most(mine[k]);
      if (lane_ == 0) m_.most[turn_][k][warp_] = of_warp;
    }
  }
  template <class T, int kCount>
  __device__ __forceinline__ void hear_most(T (&mine)[kCount]) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) mine[k] = warp_most(lane_ < warps() ? T(m_.most[turn_][k][lane_]) : T(0));
  }
  /// f(keys [64 w, 64 w + 64) in the registers of warp w), then they are written back.
  template <class F>
  __device__ __forceinline__ void each_chunk(uint64_t* keys, int32_t size, F&& f) {
#pragma unroll 1
    for (int32_t first = warp_ * kWarpKeys; first < size; first += int32_t(blockDim.x) * 2) {
      WarpKeys chunk{{keys[first + lane_], keys[first + 32 + lane_]}, first + lane_};
      f(chunk);
      keys[first + lane_] = chunk.key[0], keys[first + 32 + lane_] = chunk.key[1];
    }
    __syncthreads();
  }
  CtaMemory& m_;
  const int thread_, warp_, lane_;
  int turn_ = 0;  // which of the memory's two halves was told last
};

}  // namespace kvloom::device_plan
