#include "cli/bench/cpu_rows.h"

#include "cli/bench/ceilings.h"
#include "cli/bench/region.h"
#include "cli/bench/timeline_runs.h"
#include "cli/bench/timing.h"
#include "kvloom/base/math.h"
#include "kvloom/support/check.h"
#include "kvloom/support/thread_pool.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>

namespace kvloom::cli {
namespace {

constexpr int64_t kBlockValues = 1000003;  // a prime number

Region random_tensor(int64_t elements, DType dtype, uint32_t seed) {
  const std::vector<char> block = normal_block(dtype, kBlockValues, seed);
  Region region(elements * size_of(dtype));
  for (int64_t at = 0, n = int64_t(block.size()); at < region.size(); at += n) {
    std::memcpy(region.data() + at, block.data(), size_t(std::min(n, region.size() - at)));
  }
  return region;
}

/// The tensors, page table (in random order) and lengths of one shape.
struct Problem {
  Region q, k, v, o;
  std::vector<int32_t> qo_indptr, kv_len, list_indptr, pages;
  Batch batch;
  RunTensors tensors;
  Capacity capacity;
};

Tensor kv_tensor(const BenchShape& s, const Region& data, int64_t slots, int64_t dim) {
  const AttentionSpec& spec = s.spec;
  const int64_t heads = spec.num_kv_heads;
  if (spec.storage == Storage::ragged) return Tensor::dense(data.data(), spec.kv_dtype, {slots, heads, dim});
  const int64_t pages = slots / spec.page_size;
  if (s.layout == KvLayout::hnd) return Tensor::dense(data.data(), spec.kv_dtype, {pages, heads, spec.page_size, dim});
  return Tensor::dense(data.data(), spec.kv_dtype, {pages, spec.page_size, heads, dim});
}

std::unique_ptr<Problem> make_problem(const BenchShape& s) {
  auto p = std::make_unique<Problem>();
  const AttentionSpec& spec = s.spec;
  const bool paged = spec.storage == Storage::paged;
  const int32_t lists = ceil_div(s.kv_len, spec.page_size);  // pages a request
  const int64_t tokens = int64_t(s.requests) * s.q_len;
  const int64_t slots = int64_t(s.requests) * lists * spec.page_size;
  p->q = random_tensor(tokens * spec.num_qo_heads * spec.head_dim_qk, spec.q_dtype, 1);
  p->o = Region(tokens * spec.num_qo_heads * spec.head_dim_vo * size_of(spec.o_dtype));
  p->k = random_tensor(slots * spec.num_kv_heads * spec.head_dim_qk, spec.kv_dtype, 2);
  p->v = random_tensor(slots * spec.num_kv_heads * spec.head_dim_vo, spec.kv_dtype, 3);
  for (int32_t r = 0; r <= s.requests; ++r) {
    p->qo_indptr.push_back(r * s.q_len);
    p->list_indptr.push_back(r * lists);
    if (r < s.requests) p->kv_len.push_back(s.kv_len);
  }
  if (paged) {
    p->pages.resize(size_t(s.requests) * size_t(lists));
    std::iota(p->pages.begin(), p->pages.end(), 0);
    std::shuffle(p->pages.begin(), p->pages.end(), std::mt19937(4));
    p->batch.pages = IndexView(p->pages.data(), int64_t(p->pages.size()));
    p->tensors.pages = p->batch.pages;
  }
  p->batch.num_requests = s.requests;
  p->batch.qo_indptr = IndexView(p->qo_indptr.data(), s.requests + 1);
  p->batch.kv_len = IndexView(p->kv_len.data(), s.requests);
  p->batch.list_indptr = IndexView(p->list_indptr.data(), s.requests + 1);
  p->tensors.q = Tensor::dense(p->q.data(), spec.q_dtype, {tokens, spec.num_qo_heads, spec.head_dim_qk});
  p->tensors.o = Tensor::dense(p->o.data(), spec.o_dtype, {tokens, spec.num_qo_heads, spec.head_dim_vo});
  p->tensors.k = kv_tensor(s, p->k, slots, spec.head_dim_qk);
  p->tensors.v = kv_tensor(s, p->v, slots, spec.head_dim_vo);
  p->tensors.layout = s.layout;
  p->capacity = {s.requests, tokens, int64_t(s.requests) * s.kv_len, 0, 0};
  return p;
}

/// Kept (query row, key) pairs of one head over the batch.
double kept_pairs(const BenchShape& s) {
  if (!s.spec.variant.range.causal) return double(s.requests) * s.q_len * s.kv_len;
  double pairs = 0;
  for (int32_t i = 0; i < s.q_len; ++i) pairs += std::max(0, s.kv_len - s.q_len + i + 1);
  return pairs * s.requests;
}

BenchRow measure(const BenchShape& s, const BenchOptions& options, int threads, ReadCeiling& memory) {
  const std::unique_ptr<Problem> p = make_problem(s);
  EngineOptions engine_options;
  engine_options.threads = threads;
  engine_options.levels = LevelMode::off;
  engine_options.cpu_target = options.cpu_target.empty() ? nullptr : options.cpu_target.c_str();
  engine_options.timeline = options.timeline;
  Engine engine(s.spec, p->capacity, engine_options);
  const Plan plan = engine.plan(p->batch);
  engine.run(plan, p->tensors);
  ThreadPool pool(threads);
  const double bytes = double(p->k.size() + p->v.size() + p->q.size() + p->o.size());
  const double flop = 2.0 * (s.spec.head_dim_qk + s.spec.head_dim_vo) * kept_pairs(s) * s.spec.num_qo_heads;
  std::vector<double> times, read, fma, shares;
  // Where a region lies in physical memory moves its read rate by a fifth, so memory-bound rows stand beside a linear read of their own K.
  const auto read_rate = [&] { return s.memory_bound ? measure_read_gbps(pool, p->k) : memory.measure_gbps(pool); };
  for (int r = 0; r <= options.repeat; ++r) {
    read.push_back(read_rate());
    fma.push_back(measure_fma_gflops(pool, 0.03));
    if (r > 0) {  // a run's roof is the mean of the ceilings just before it and just after
      const double rate = (s.memory_bound ? bytes : flop) / times.back() * 1e-3;
      const std::vector<double>& roof = s.memory_bound ? read : fma;
      shares.push_back(rate / (0.5 * (roof[size_t(r) - 1] + roof[size_t(r)])));
    }
    if (r == options.repeat) break;
    const double begin = now_us();
    engine.run(plan, p->tensors);
    times.push_back(now_us() - begin);
  }
  BenchRow row;
  row.key = engine.kernel_key();
  row.shape = s.name;
  row.threads = threads;
  row.median_us = percentile(times, 0.5);
  row.p10_us = percentile(times, 0.1);
  row.p90_us = percentile(times, 0.9);
  row.gbps = bytes / row.median_us * 1e-3;
  row.gflops = flop / row.median_us * 1e-3;
  row.ceiling_gbps = percentile(read, 0.5);
  row.ceiling_gflops = percentile(fma, 0.5);
  row.share = percentile(shares, 0.5);
  row.share_p10 = percentile(shares, 0.1);
  row.share_p90 = percentile(shares, 0.9);
  if (options.timeline) row.timeline = timeline_of_runs(fmt::format("{}, {} thread{}", s.name, threads, threads == 1 ? "" : "s"), engine, plan, [&](int) { return p->tensors; });
  return row;
}

}  // namespace

std::vector<BenchRow> run_cpu_bench(const std::vector<BenchShape>& shapes, const BenchOptions& options,
                                    const std::function<void(const BenchRow&)>& report) {
  require(options.repeat >= 1, "bench: --repeat: got {}, wanted at least 1", options.repeat);
  std::vector<BenchRow> rows;
  ReadCeiling memory;
  for (const BenchShape& s : shapes) {
    for (const int threads : options.threads) {
      rows.push_back(measure(s, options, threads, memory));
      report(rows.back());
    }
  }
  return rows;
}

nlohmann::ordered_json to_json(const BenchRow& r) {
  nlohmann::ordered_json j{{"key", r.key},
          {"shape", r.shape},
          {"threads", r.threads},
          {"median_us", r.median_us},
          {"p10_us", r.p10_us},
          {"p90_us", r.p90_us},
          {"gbps", r.gbps},
          {"gflops", r.gflops},
          {"ceiling_gbps", r.ceiling_gbps},
          {"ceiling_gflops", r.ceiling_gflops},
          {"share", r.share},
          {"share_p10", r.share_p10},
          {"share_p90", r.share_p90}};
  if (r.timeline) j["timeline"] = to_json(*r.timeline, summarise(*r.timeline));
  return j;
}

}  // namespace kvloom::cli
