// The rows of `kvloom bench --backend cpu`: shapes as data, one measurement each, beside the ceilings of the same minute.
#pragma once

#include "cli/report/timeline.h"
#include "kvloom/api/engine.h"

#include <nlohmann/json.hpp>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace kvloom::cli {

/// `requests` equal requests of `q_len` new tokens on `kv_len` keys.
struct BenchShape {
  std::string name;  // decode-64x4096-32/8-d128-bf16-page16-hnd
  AttentionSpec spec;
  KvLayout layout = KvLayout::nhd;
  int32_t requests = 1;
  int32_t q_len = 1;
  int32_t kv_len = 0;
  bool memory_bound = false;  // the roof that `share` is a share of
};

struct BenchRow {
  std::string key;  // of the kernel that ran
  std::string shape;
  int threads = 1;
  double median_us = 0, p10_us = 0, p90_us = 0;
  double gbps = 0;                              // K and V bytes that must be read once, Q and O
  double gflops = 0;                            // 4 x head_dim (mean of qk and vo) x kept (row, key) pairs
  double ceiling_gbps = 0, ceiling_gflops = 0;  // measured between the repeats, medians
  double share = 0;  // of the roof that binds: the median of each run's rate over the ceilings beside it, so that a machine that is
                     // slow for a second is slow for both
  double share_p10 = 0, share_p90 = 0;
  std::optional<Timeline> timeline;
};

/// All rows of the CPU, in the order they are reported.
std::vector<BenchShape> cpu_bench_shapes();

struct BenchOptions {
  std::vector<int> threads = {1, 2};
  int repeat = 7;
  std::string cpu_target;
  bool timeline = false;  // of each row, by runs behind those that are timed
};

/// Runs the shapes; `report` is called after each row.
std::vector<BenchRow> run_cpu_bench(const std::vector<BenchShape>& shapes, const BenchOptions& options,
                                    const std::function<void(const BenchRow&)>& report);

nlohmann::ordered_json to_json(const BenchRow& row);

}  // namespace kvloom::cli
