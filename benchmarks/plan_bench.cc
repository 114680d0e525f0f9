// Time of plan() on one core: decode steps of a Llama-3.1-8B shape (32 query heads, 8 KV heads) on 132 CTAs, one head an item, Zipf
// lengths. Bars: stream <= 15 us for 128 requests, <= 20 us for 256, <= 1 ms for 8192, heap <= 80 us for 256, search for prefixes <= 30 us
// more.
#include "kvloom/plan/planner.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

namespace kvloom {
namespace {

struct Free {
  void operator()(void* p) const { std::free(p); }
};

AttentionSpec llama_8b() {
  AttentionSpec s;
  s.num_qo_heads = 32;
  s.num_kv_heads = 8;
  s.head_dim_qk = s.head_dim_vo = 128;
  s.variant.range.causal = true;
  s.page_size = 16;
  return s;
}

SchedulerConfig h200(Policy policy) {
  SchedulerConfig c;
  c.num_ctas = 132;
  c.policy = policy;
  c.classes[0] = {.tile_rows = 16, .tile_kv = 64, .heads_per_item = 1, .cost_per_token = 15, .cost_per_tile_row = 0, .cost_per_item = 300};
  c.classes[1] = {
      .tile_rows = 128, .tile_kv = 128, .heads_per_item = 1, .cost_per_token = 12, .cost_per_tile_row = 0, .cost_per_item = 300};
  return c;
}

/// `requests` of one new token each, or, with `prefill`, every 32nd one with 512. Lengths 1 / rank in random order, mean 4096. No page is
/// shared.
struct Step {
  std::vector<int32_t> qo_indptr{0}, kv_len, pages;
  std::vector<int64_t> list_indptr{0};
  Batch batch;
  Capacity capacity;

  Step(int32_t requests, bool prefill) {
    double harmonic = 0;
    for (int32_t r = 1; r <= requests; ++r) harmonic += 1.0 / r;
    for (int32_t r = 1; r <= requests; ++r) kv_len.push_back(16 + int32_t(4080.0 * requests / harmonic / r));
    std::shuffle(kv_len.begin(), kv_len.end(), std::mt19937(7));
    for (int32_t r = 0; r < requests; ++r) {
      if (prefill && r % 32 == 0) kv_len[r] += 512;
      qo_indptr.push_back(qo_indptr.back() + (prefill && r % 32 == 0 ? 512 : 1));
      list_indptr.push_back(list_indptr.back() + (kv_len[r] + 15) / 16);
      capacity.max_kv_tokens += kv_len[r];
    }
    pages.resize(size_t(list_indptr.back()));
    for (size_t i = 0; i < pages.size(); ++i) pages[i] = int32_t(i);
    batch.num_requests = requests;
    batch.qo_indptr = IndexView(qo_indptr.data(), requests + 1);
    batch.kv_len = IndexView(kv_len.data(), requests);
    batch.list_indptr = IndexView(list_indptr.data(), requests + 1);
    batch.pages = IndexView(pages.data(), int64_t(pages.size()));
    capacity.max_requests = requests;
    capacity.max_query_tokens = qo_indptr.back();
    capacity.max_level_rows = requests;
  }
};

void plan(benchmark::State& state, Policy policy, LevelMode levels, bool prefill) {
  const Step step(int32_t(state.range(0)), prefill);
  SchedulerConfig config = h200(policy);
  config.levels = levels;
  plan::Planner planner(llama_8b(), step.capacity, config);
  const int64_t bytes = planner.layout().plan_bytes;
  const std::unique_ptr<void, Free> buffer(std::aligned_alloc(64, size_t(bytes)));
  for (auto _ : state) planner.plan(step.batch, buffer.get(), bytes);
  const PlanHeader& h = *static_cast<const PlanHeader*>(buffer.get());
  state.counters["items"] = h.num_items;
  state.counters["units"] = h.num_units;
  state.counters["max_over_mean"] = double(h.cost_max) * h.num_ctas / double(h.cost_total);
}

#define KVLOOM_PLAN_BENCH(name, policy, levels, prefill) \
  BENCHMARK_CAPTURE(plan, name, Policy::policy, LevelMode::levels, prefill)->Unit(benchmark::kMicrosecond)

KVLOOM_PLAN_BENCH(stream, stream, off, false)->Arg(1)->Arg(16)->Arg(64)->Arg(128)->Arg(256)->Arg(1024)->Arg(8192);
KVLOOM_PLAN_BENCH(automatic, automatic, off, false)->Arg(16)->Arg(64)->Arg(128)->Arg(256);
KVLOOM_PLAN_BENCH(heap, heap, off, false)->Arg(1)->Arg(16)->Arg(64)->Arg(128)->Arg(256)->Arg(1024);
KVLOOM_PLAN_BENCH(fixed_split, fixed_split, off, false)->Arg(256);
KVLOOM_PLAN_BENCH(none, none, off, false)->Arg(256);
KVLOOM_PLAN_BENCH(fill_mixed, fill, off, true)->Arg(64)->Arg(256);
KVLOOM_PLAN_BENCH(stream_search_levels, stream, automatic, false)->Arg(64)->Arg(256)->Arg(1024);

}  // namespace
}  // namespace kvloom

BENCHMARK_MAIN();
