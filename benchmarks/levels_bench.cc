// Time of the search for shared prefixes on one core: decode steps with pages of 16 tokens. Bar: <= 30 us for 256 requests that share
// nothing, which is what every step pays. Where much is shared, the shared part of every page table has to be read.
#include "kvloom/plan/levels.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <random>
#include <vector>

namespace kvloom {
namespace {

constexpr int32_t kPage = 16;

/// Decode requests of about 4096 tokens. Request i shares `trunk` pages with all of its family, `branch` more with half of it and `branch`
/// more with a quarter; page ids are scattered as in a pool that has been in use.
struct Step {
  std::vector<int32_t> qo_indptr{0}, kv_len, pages;
  std::vector<int64_t> list_indptr{0};
  Batch batch;

  Step(int32_t requests, int32_t families, int32_t trunk, int32_t branch) {
    std::mt19937 random(7);
    std::vector<int32_t> pool(size_t(requests) * 512);
    for (size_t i = 0; i < pool.size(); ++i) pool[i] = int32_t(i);
    std::shuffle(pool.begin(), pool.end(), random);
    const auto shared = [&](int32_t family, int32_t node, int32_t index) { return 1'000'000'000 + (family * 16 + node) * 4096 + index; };
    size_t next = 0;
    for (int32_t r = 0; r < requests; ++r) {
      const int32_t length = 2048 + int32_t(random() % 4096), count = (length + kPage - 1) / kPage, family = r % families;
      for (int32_t i = 0; i < count; ++i) {
        int32_t page = pool[next++ % pool.size()];
        if (i < trunk) {
          page = shared(family, 0, i);
        } else if (i < trunk + branch) {
          page = shared(family, 1 + r / families % 2, i);
        } else if (i < trunk + 2 * branch) {
          page = shared(family, 3 + r / families % 4, i);
        }
        pages.push_back(page);
      }
      qo_indptr.push_back(r + 1);
      kv_len.push_back(length);
      list_indptr.push_back(int64_t(pages.size()));
    }
    batch.num_requests = requests;
    batch.qo_indptr = IndexView(qo_indptr.data(), int64_t(qo_indptr.size()));
    batch.kv_len = IndexView(kv_len.data(), int64_t(kv_len.size()));
    batch.list_indptr = IndexView(list_indptr.data(), int64_t(list_indptr.size()));
    batch.pages = IndexView(pages.data(), int64_t(pages.size()));
  }
};

void find(benchmark::State& state, int32_t families, int32_t trunk, int32_t branch) {
  const int32_t requests = int32_t(state.range(0));
  AttentionSpec spec;
  spec.num_qo_heads = 32;
  spec.num_kv_heads = 8;
  spec.page_size = kPage;
  spec.variant.range.causal = true;
  SchedulerConfig config;
  config.classes[1].tile_rows = 128;
  Capacity capacity;
  capacity.max_level_rows = 8 * int64_t(requests);
  const Step step(requests, families, trunk, branch);
  plan::PrefixFinder finder;
  plan::GroupList list;
  for (auto _ : state) {
    list.clear();
    benchmark::DoNotOptimize(finder.find(spec, capacity, config, step.batch, list));
  }
  state.counters["groups"] = double(list.groups.size());
}

void nothing_shared(benchmark::State& state) { find(state, 1, 0, 0); }
void one_prefix(benchmark::State& state) { find(state, 1, 64, 0); }
void two_families_of_depth_three(benchmark::State& state) { find(state, 2, 32, 16); }

BENCHMARK(nothing_shared)->Arg(16)->Arg(256)->Arg(8192)->Unit(benchmark::kMicrosecond);
BENCHMARK(one_prefix)->Arg(256)->Arg(8192)->Unit(benchmark::kMicrosecond);
BENCHMARK(two_families_of_depth_three)->Arg(256)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kvloom

BENCHMARK_MAIN();
