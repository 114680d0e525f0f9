#include "cli/bench/ceilings.h"

#include "kvloom/support/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>

namespace kvloom::cli {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// One body for every instruction set; the vector's width is the type.
using Vector4 = float __attribute__((vector_size(16)));
using Vector8 = float __attribute__((vector_size(32)));
using Vector16 = float __attribute__((vector_size(64)));
constexpr int kChains = 12;  // latency 4 x two units, and some slack

/// `rounds` x 12 chains x lanes of multiply-add; returns a value that depends on all of them.
template <class Vector>
inline __attribute__((always_inline)) float fma_body(int64_t rounds) {
  Vector a[kChains];
  for (int c = 0; c < kChains; ++c) a[c] = Vector{} + float(c);
  const Vector x = Vector{} + 0.999f, y = Vector{} + 1e-6f;
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) a[c] = a[c] * x + y;
  }
  Vector sum = Vector{};
  for (int c = 0; c < kChains; ++c) sum += a[c];
  return sum[0] + sum[3];
}

template <class Vector>
inline __attribute__((always_inline)) float read_body(const float* data, int64_t floats) {
  constexpr int kLanes = sizeof(Vector) / 4;
  Vector sum[4] = {Vector{}, Vector{}, Vector{}, Vector{}};
  for (int64_t i = 0; i + 4 * kLanes <= floats; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) sum[c] += *reinterpret_cast<const Vector*>(data + i + kLanes * c);
  }
  const Vector total = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  return total[0] + total[3];
}

struct Loops {
  float (*fma)(int64_t rounds);
  int lanes;
  float (*read)(const float* data, int64_t floats);
};

float fma_any(int64_t rounds) { return fma_body<Vector4>(rounds); }
float read_any(const float* data, int64_t floats) { return read_body<Vector4>(data, floats); }

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) float fma_avx2(int64_t rounds) { return fma_body<Vector8>(rounds); }
__attribute__((target("avx2,fma"))) float read_avx2(const float* data, int64_t floats) { return read_body<Vector8>(data, floats); }
__attribute__((target("avx512f"))) float fma_avx512(int64_t rounds) { return fma_body<Vector16>(rounds); }
__attribute__((target("avx512f"))) float read_avx512(const float* data, int64_t floats) { return read_body<Vector16>(data, floats); }
#endif

Loops best_loops() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return {fma_avx512, 16, read_avx512};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {fma_avx2, 8, read_avx2};
#endif
  return {fma_any, 4, read_any};
}

std::atomic<float> sink;  // keeps the loops

}  // namespace

double measure_fma_gflops(ThreadPool& pool, double seconds) {
  constexpr int64_t kRounds = 200000;  // about 2 ms
  const Loops loops = best_loops();
  std::atomic<int64_t> batches{0};
  const double begin = now();
  pool.run([&](int) {
    int64_t mine = 0;
    do {
      sink.store(loops.fma(kRounds), std::memory_order_relaxed);
      ++mine;
    } while (now() - begin < seconds);
    batches.fetch_add(mine);
  });
  return double(batches.load()) * double(kRounds) * kChains * loops.lanes * 2 / (now() - begin) * 1e-9;
}

ReadCeiling::ReadCeiling(int64_t bytes) : memory_(bytes) {
  std::fill_n(reinterpret_cast<float*>(memory_.data()), bytes / 4, 1e-3f);
}

double measure_read_gbps(ThreadPool& pool, const Region& region) {
  const auto* const data = reinterpret_cast<const float*>(region.data());
  const int64_t floats = region.size() / 4 / pool.size() / 64 * 64;  // whole strides of the widest loop
  const Loops loops = best_loops();
  const double begin = now();
  pool.run([&](int t) { sink.store(loops.read(data + t * floats, floats), std::memory_order_relaxed); });
  return double(floats) * 4 * pool.size() / (now() - begin) * 1e-9;
}

Ceilings measure_ceilings(ThreadPool& pool, ReadCeiling& memory, int rounds) {
  Ceilings best;
  for (int r = 0; r < rounds; ++r) {
    best.read_gbps = std::max(best.read_gbps, memory.measure_gbps(pool));
    best.fma_gflops = std::max(best.fma_gflops, measure_fma_gflops(pool));
  }
  return best;
}

}  // namespace kvloom::cli
