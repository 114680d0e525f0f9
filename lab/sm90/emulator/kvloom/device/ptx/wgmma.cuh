// Products happen as late as they may: when their warpgroup waits for them. Operands are read then, from where they were, so whoever lets go of a
// tile, writes into P or reads O too early computes with other numbers.
#pragma once
#include <deque>
#include <functional>
#include <vector>
#include "lab/sm80/emulator/kvloom/device/ptx/mma.cuh"
namespace kvloom::ptx {
using Products = std::vector<std::function<void()>>;
struct Pending {
  Products open;
  std::deque<Products> groups;
};
inline Pending& pending() {
  static Pending of_thread[1024];
  return of_thread[threadIdx.x];
}
inline void warpgroup_begin() {}
inline void warpgroup_commit() {
  pending().groups.push_back(std::move(pending().open));
  pending().open.clear();
}
template <int kPending>
inline void warpgroup_wait() {
  std::deque<Products>& groups = pending().groups;
  while (int(groups.size()) > kPending) {
    for (const auto& product : groups.front()) product();
    groups.pop_front();
  }
}
template <int kTiles, class T>
inline void pinned(T (&)[kTiles][4]) {}
enum class Major { k = 0, mn = 1 };

struct Operand {
  uint32_t start, leading, stride, swizzle;
  explicit Operand(uint64_t d)
      : start(uint32_t(d & 0x3fff) << 4), leading(uint32_t(d >> 16 & 0x3fff) << 4), stride(uint32_t(d >> 32 & 0x3fff) << 4), swizzle(256u >> uint32_t(d >> 62)) {}
  uint16_t at(uint32_t address) const {
    uint16_t x;
    std::memcpy(&x, simt::shared(address ^ ((address >> 7 & (swizzle / 16 - 1)) << 4)), 2);
    return x;
  }
  /// Element (outer, k) where k is side by side.
  uint16_t k_major(int outer, int k) const { return at(start + uint32_t(outer / 8) * stride + uint32_t(outer % 8) * swizzle + uint32_t(2 * k)); }
  /// Element (k, n) where n is side by side.
  uint16_t mn_major(int k, int n) const {
    const int block = int(swizzle) / 2;
    return at(start + uint32_t(k / 8) * stride + uint32_t(k % 8) * swizzle + uint32_t(n / block) * leading + uint32_t(n % block * 2));
  }
};

template <DType kType, Major kMajor, int kTiles>
struct WarpgroupMma {
  static constexpr int N = 8 * kTiles;
  static float f(uint16_t x) { return kType == DType::bf16 ? bf16_to_float(x) : f16_to_float(x); }

  static void run(float (&d)[kTiles][4], const float (&rows)[2][16], uint64_t b, bool adds) {
    static float columns[8][N][16];  // of a warpgroup
    const int group = int(threadIdx.x) / 128, lane = int(threadIdx.x) & 31;
    if (threadIdx.x % 128 == 0) {
      const Operand o(b);
      for (int n = 0; n < N; ++n) {
        for (int k = 0; k < 16; ++k) columns[group][n][k] = f(kMajor == Major::k ? o.k_major(n, k) : o.mn_major(k, n));
      }
    }
    simt::named_barrier(32 + group, 128);
    for (int t = 0; t < kTiles; ++t) {
      for (int e = 0; e < 4; ++e) {
        const float* const y = columns[group][t * 8 + 2 * (lane % 4) + e % 2];
        float sum = 0.0f;
        for (int k = 0; k < 16; ++k) sum += rows[e / 2][k] * y[k];
        d[t][e] = adds ? d[t][e] + sum : sum;
      }
    }
    simt::named_barrier(32 + group, 128);
  }
  template <bool kAdds>
  static void registers(float (&d)[kTiles][4], const uint32_t (&a)[4], uint64_t b) {
    pending().open.push_back([&d, &a, b] { multiply<kAdds>(d, a, b); });
  }
  template <bool kAdds>
  static void shared(float (&d)[kTiles][4], uint64_t a, uint64_t b) {
    pending().open.push_back([&d, a, b] { multiply<kAdds>(d, a, b); });
  }
  template <bool kAdds>
  static void multiply(float (&d)[kTiles][4], const uint32_t (&a)[4], uint64_t b) {
    const auto* all = simt::warp_share(a, 16);
    const int lane = int(threadIdx.x) & 31;
    float rows[2][16];
    for (int h = 0; h < 2; ++h) {
      for (int k = 0; k < 16; ++k) {
        uint32_t words[4];
        std::memcpy(words, all[lane / 4 * 4 + k % 8 / 2].bytes, 16);
        rows[h][k] = half_of<kType>(words[h + k / 8 * 2], k % 2);
      }
    }
    run(d, rows, b, kAdds);
  }
  template <bool kAdds>
  static void multiply(float (&d)[kTiles][4], uint64_t a, uint64_t b) {
    const Operand o(a);
    const int lane = int(threadIdx.x) & 31, first = int(threadIdx.x) / 32 % 4 * 16 + lane / 4;
    float rows[2][16];
    for (int h = 0; h < 2; ++h) {
      for (int k = 0; k < 16; ++k) rows[h][k] = f(o.k_major(first + 8 * h, k));
    }
    run(d, rows, b, kAdds);
  }
};
}  // namespace kvloom::ptx
