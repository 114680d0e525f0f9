// The rows of `kvloom bench --backend cuda`: shapes as data, times by the GPU's own clock, beside ceilings of the same run.
#pragma once

#include "kvloom/api/engine.h"

#include <nlohmann/json.hpp>

#include <functional>
#include <string>
#include <vector>

namespace kvloom::cli {

struct GpuShape {
  std::string name;
  AttentionSpec spec;
  std::vector<int32_t> q_len, kv_len;  // [requests]
  bool memory_bound = false;           // the roof that counts
};

/// The shapes that serving is made of, as far as this backend runs them, and each feature beside the plain row.
std::vector<GpuShape> gpu_bench_shapes();

struct GpuBenchRow {
  std::string key, shape, policy;
  double median_us = 0, p10_us = 0, p90_us = 0;  // of one run, on the GPU
  double tbps = 0;                               // K and V bytes that must be read once, Q and O
  double tflops = 0;                             // 2 (head_dim_qk + head_dim_vo) x kept (row, key) pairs
  double plan_us = 0;                            // host, median
  double run_host_us = 0;                        // host, of a run() call, median
  int runs = 1;                                  // in a graph whose time was taken: a row is the share of one
  double share = 0;                              // of the run's ceiling that binds: reading, or products
  int64_t plan_bytes = 0;                        // that go to the device
};

struct GpuCeilings {
  double copy_tbps = 0;  // read + written
  double read_tbps = 0;
  double products_tflops = 0;  // bf16 mma.sync, operands in registers
};

struct GpuBenchOptions {
  int32_t device = 0;
  int repeat = 12;
  std::string filter;
};

GpuCeilings measure_gpu_ceilings(int32_t device);
/// Runs the shapes; `report` is called after each row.
std::vector<GpuBenchRow> run_gpu_bench(const GpuBenchOptions& options, const GpuCeilings& ceilings, const std::function<void(const GpuBenchRow&)>& report);

nlohmann::ordered_json to_json(const GpuBenchRow& row);
nlohmann::ordered_json to_json(const GpuCeilings& ceilings);

}  // namespace kvloom::cli
