// Prefill on the CPU through the engine, beside the multiply-add peak of this machine: peak, run, peak, run, .. so that both see the same
// minute. Counters: GFLOP/s of the best run (causal counts half), the best peak, and the share. Time is wall time.
#include "kvloom/api/engine.h"
#include "kvloom/base/math.h"
#include "kvloom/support/thread_pool.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <vector>

namespace kvloom {
namespace {

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// Twelve chains of 8-lane multiply-adds in registers; returns operations done.
#if defined(__x86_64__)
__attribute__((target("avx2,fma"), noinline)) double fma_chains(int64_t rounds) {
  typedef float Lanes __attribute__((vector_size(32)));
  Lanes a[12] = {};
  Lanes x = a[0] + 0.999f, y = a[0] + 1e-6f;
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) __asm__ volatile("vfmadd213ps %2, %1, %0" : "+x"(a[j]) : "x"(x), "x"(y));
  }
  return double(rounds) * 12 * 8 * 2;
}
#endif

double peak_gflops(ThreadPool& pool) {
#if defined(__x86_64__)
  const double begin = seconds();
  pool.run([](int) { fma_chains(400000); });
  return pool.size() * 400000.0 * 12 * 8 * 2 / (seconds() - begin) * 1e-9;
#else
  return 0.0;
#endif
}

/// One request of 2048 tokens, head_dim 128, pages of 16 in random order.
struct Prefill {
  static constexpr int32_t kTokens = 2048, kDim = 128, kPage = 16, kKvHeads = 8;
  int32_t qo_heads;
  DType kv_dtype;
  std::vector<float> q, o;
  std::vector<uint8_t> k, v;
  std::vector<int32_t> pages, indptr{0, kTokens}, kv_len{kTokens}, list{0, kTokens / kPage};

  Prefill(int32_t heads, DType t) : qo_heads(heads), kv_dtype(t), q(int64_t(kTokens) * heads * kDim), o(q.size()), pages(kTokens / kPage) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (float& x : q) x = normal(random);
    for (std::vector<uint8_t>* data : {&k, &v}) {
      data->resize(int64_t(kTokens) * kKvHeads * kDim * size_of(t));
      for (int64_t i = 0; i < int64_t(kTokens) * kKvHeads * kDim; ++i) store_from_float(data->data(), t, i, normal(random));
    }
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), random);
  }
};

void prefill(benchmark::State& state, DType kv_dtype, bool causal) {
  const int32_t qo_heads = static_cast<int32_t>(state.range(0)), threads = static_cast<int32_t>(state.range(1));
  Prefill p(qo_heads, kv_dtype);
  AttentionSpec spec;
  spec.num_qo_heads = qo_heads;
  spec.num_kv_heads = Prefill::kKvHeads;
  spec.head_dim_qk = spec.head_dim_vo = Prefill::kDim;
  spec.kv_dtype = kv_dtype;
  spec.page_size = Prefill::kPage;
  spec.variant.range.causal = causal;
  Capacity capacity;
  capacity.max_requests = 1;
  capacity.max_query_tokens = capacity.max_kv_tokens = Prefill::kTokens;
  EngineOptions options;
  options.threads = threads;
  Engine engine(spec, capacity, options);
  Batch batch;
  batch.num_requests = 1;
  batch.qo_indptr = IndexView(p.indptr.data(), 2);
  batch.kv_len = IndexView(p.kv_len.data(), 1);
  batch.list_indptr = IndexView(p.list.data(), 2);
  batch.pages = IndexView(p.pages.data(), int64_t(p.pages.size()));
  const Plan plan = engine.plan(batch);
  RunTensors t;
  t.q = Tensor::dense(p.q.data(), DType::f32, {Prefill::kTokens, qo_heads, Prefill::kDim});
  t.k = Tensor::dense(p.k.data(), kv_dtype, {Prefill::kTokens / Prefill::kPage, Prefill::kPage, Prefill::kKvHeads, Prefill::kDim});
  t.v = Tensor::dense(p.v.data(), kv_dtype, {Prefill::kTokens / Prefill::kPage, Prefill::kPage, Prefill::kKvHeads, Prefill::kDim});
  t.o = Tensor::dense(p.o.data(), DType::f32, {Prefill::kTokens, qo_heads, Prefill::kDim});
  t.pages = batch.pages;
  ThreadPool pool(threads);
  const double flop = 4.0 * Prefill::kTokens * Prefill::kTokens * Prefill::kDim * qo_heads * (causal ? 0.5 : 1.0);
  double best = 1e30, peak = 0;
  for (auto _ : state) {
    peak = std::max(peak, peak_gflops(pool));
    const double begin = seconds();
    engine.run(plan, t);
    const double took = seconds() - begin;
    state.SetIterationTime(took);
    best = std::min(best, took);
  }
  peak = std::max(peak, peak_gflops(pool));
  state.counters["GFLOP/s"] = flop / best * 1e-9;
  state.counters["peak"] = peak;
  state.counters["share"] = flop / best * 1e-9 / peak;
}

#define KVLOOM_PREFILL(name, dtype, causal)       \
  BENCHMARK_CAPTURE(prefill, name, dtype, causal) \
      ->ArgsProduct({{8, 32}, {1, 2}})            \
      ->ArgNames({"heads", "threads"})            \
      ->UseManualTime()                           \
      ->Unit(benchmark::kMillisecond)
KVLOOM_PREFILL(f32_causal, DType::f32, true);
KVLOOM_PREFILL(f32_full, DType::f32, false);
KVLOOM_PREFILL(bf16_causal, DType::bf16, true);
KVLOOM_PREFILL(bf16_full, DType::bf16, false);

}  // namespace
}  // namespace kvloom

BENCHMARK_MAIN();
