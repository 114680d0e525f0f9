// What a step costs the host of a GPU besides the kernels: Engine::plan() with everything that it checks, for an architecture alone (no GPU
// is needed), and packing the plan for its copy. Decode steps of a Llama-3.1-8B shape, on the CTAs that an engine of an H200 plans for.
// plan: 8192 keys a request; plan_lengths: 4096 to 8191. Bar: 15 us together for 128 requests at page size 16.
// run_eight_tensors: what kvloom_run() checks of eight tensors, by a plan without query tokens, for which nothing is launched. benchmarks/python_host.py
// has the same call through Python.
#include "kvloom/api/engine.h"
#include "kvloom/api/kvloom.h"
#include "kvloom/plan/packed.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace kvloom {
namespace {

struct Decode {
  std::vector<int32_t> qo_indptr{0}, list_indptr{0}, kv_len, pages;
  AttentionSpec spec;
  Batch batch;

  Decode(int32_t requests, int32_t page_size, int32_t shortest = 8192, int32_t longest = 8192) {
    std::mt19937 random(3);
    spec.num_qo_heads = 32;
    spec.num_kv_heads = 8;
    spec.head_dim_qk = spec.head_dim_vo = 128;
    spec.q_dtype = spec.kv_dtype = spec.o_dtype = DType::bf16;
    spec.variant.range.causal = true;
    spec.page_size = page_size;
    for (int32_t r = 0; r < requests; ++r) {
      kv_len.push_back(shortest + int32_t(random() % uint32_t(longest - shortest + 1)));
      qo_indptr.push_back(r + 1);
      list_indptr.push_back(list_indptr.back() + (kv_len.back() + page_size - 1) / page_size);
    }
    pages.resize(size_t(list_indptr.back()));
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), random);
    batch.num_requests = requests;
    batch.qo_indptr = IndexView(qo_indptr.data(), requests + 1);
    batch.kv_len = IndexView(kv_len.data(), requests);
    batch.list_indptr = IndexView(list_indptr.data(), requests + 1);
    batch.pages = IndexView(pages.data(), int64_t(pages.size()));
  }
  Engine engine(bool check_pages = true) const {
    EngineOptions options;
    options.check_pages = check_pages;
    options.backend = Backend::cuda;
    options.cuda_arch = "sm_90a";
    return Engine(spec, {batch.num_requests, batch.num_requests, int64_t(batch.num_requests) * 8192, 0, 0}, options);
  }
};

void time_plan(benchmark::State& state, const Decode& decode, bool check_pages = true) {
  Engine engine = decode.engine(check_pages);
  for (auto _ : state) benchmark::DoNotOptimize(engine.plan(decode.batch).total_tokens());
}
void plan(benchmark::State& state) { time_plan(state, {int32_t(state.range(0)), int32_t(state.range(1))}); }
void plan_ids_unread(benchmark::State& state) { time_plan(state, {int32_t(state.range(0)), int32_t(state.range(1))}, false); }
void plan_lengths(benchmark::State& state) { time_plan(state, {int32_t(state.range(0)), int32_t(state.range(1)), 4096, 8191}); }

void pack(benchmark::State& state) {
  const Decode decode(int32_t(state.range(0)), int32_t(state.range(1)));
  Engine engine = decode.engine();
  const Plan step = engine.plan(decode.batch);
  std::vector<uint64_t> out(size_t(step.bytes().size) / 8);
  int64_t bytes = 0;
  for (auto _ : state) bytes = plan::write_packed(step.view(), reinterpret_cast<char*>(out.data()));
  state.counters["packed_bytes"] = double(bytes);
  state.counters["plan_bytes"] = double(step.bytes().size);
}

void run_eight_tensors(benchmark::State& state) {
  constexpr int32_t kRequests = 128, kHeads = 32, kEntries = 4;
  kvloom_spec spec;
  kvloom_spec_init(&spec, sizeof spec);
  spec.num_qo_heads = kHeads;
  spec.num_kv_heads = 8;
  spec.head_dim_qk = spec.head_dim_vo = 128;
  spec.q_dtype = spec.kv_dtype = spec.o_dtype = KVLOOM_BF16;
  spec.page_size = 16;
  spec.causal = spec.alibi = spec.sink = 1;
  kvloom_capacity capacity;
  kvloom_capacity_init(&capacity, sizeof capacity);
  capacity.max_requests = capacity.max_query_tokens = kRequests;
  kvloom_engine* engine = nullptr;
  const std::vector<int32_t> lengths(kRequests, 0), begins(kRequests + 1, 0), ids(kRequests * kEntries, 0);
  kvloom_batch batch;
  kvloom_batch_init(&batch, sizeof batch);
  batch.num_requests = kRequests;
  batch.kv_len = {lengths.data(), kRequests, 32};
  batch.qo_indptr = {begins.data(), kRequests + 1, 32};
  batch.pages = {ids.data(), kRequests * kEntries, 32};
  batch.table_stride = kEntries;
  kvloom_plan* plan = nullptr;
  if (kvloom_engine_create(&spec, &capacity, nullptr, nullptr, 0, &engine) != KVLOOM_OK || kvloom_plan_create(engine, &batch, &plan) != KVLOOM_OK)
    return state.SkipWithError(kvloom_last_error());
  const int64_t cache_shape[4] = {64, 16, 8, 128}, rows_shape[3] = {0, kHeads, 128}, lse_shape[2] = {0, kHeads};
  std::vector<uint16_t> k(64 * 16 * 8 * 128), v(k.size()), rows(kHeads * 128);
  std::vector<float> lse_memory(kHeads), slopes(kHeads, 0.1f), sink(kHeads, 0.0f);
  kvloom_tensor q, keys, values, o, lse;
  kvloom_tensor_init(&q, rows.data(), KVLOOM_BF16, 3, rows_shape);
  kvloom_tensor_init(&o, rows.data(), KVLOOM_BF16, 3, rows_shape);
  kvloom_tensor_init(&keys, k.data(), KVLOOM_BF16, 4, cache_shape);
  kvloom_tensor_init(&values, v.data(), KVLOOM_BF16, 4, cache_shape);
  kvloom_tensor_init(&lse, lse_memory.data(), KVLOOM_F32, 2, lse_shape);
  kvloom_run_tensors tensors;
  kvloom_run_tensors_init(&tensors, sizeof tensors);
  tensors.q = &q;
  tensors.k = &keys;
  tensors.v = &values;
  tensors.o = &o;
  tensors.lse = &lse;
  tensors.pages = batch.pages;
  tensors.alibi_slopes = slopes.data();
  tensors.sink = sink.data();
  for (auto _ : state) {
    if (kvloom_run(engine, plan, &tensors, nullptr) != KVLOOM_OK) return state.SkipWithError(kvloom_last_error());
  }
  kvloom_plan_destroy(plan);
  kvloom_engine_destroy(engine);
}

BENCHMARK(run_eight_tensors)->Unit(benchmark::kMicrosecond);
BENCHMARK(plan)->Args({128, 16})->Args({128, 64})->Args({128, 1})->Args({16, 16})->Unit(benchmark::kMicrosecond);
BENCHMARK(plan_ids_unread)->Args({128, 16})->Unit(benchmark::kMicrosecond);
BENCHMARK(plan_lengths)->Args({128, 16})->Unit(benchmark::kMicrosecond);
BENCHMARK(pack)->Args({128, 16})->Args({16, 16})->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kvloom

BENCHMARK_MAIN();
