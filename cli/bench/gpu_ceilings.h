// What a GPU can do at most, measured now: copying, reading, products of the tensor cores from registers, and the matmul of cuBLASLt. Every
// figure of a report stands beside them.
#pragma once

#include "cli/bench/gpu_normals.h"
#include "cli/bench/gpu_timing.h"

#include <nlohmann/json.hpp>

#include <optional>
#include <string>

namespace kvloom::cli {

/// n x n x n of bf16 with fp32 sums, normal values.
struct GpuMatmul {
  int64_t n = 0;
  std::string library;  // "cuBLASLt 13.1.0"
  std::string path;
  double burst_tflops = 0, sustained_tflops = 0;
  double burst_tensor_share = 0, sustained_tensor_share = 0;  // 0: unknown
  GpuTimes burst, sustained;
};

struct GpuCeilings {
  double copy_tbps = 0;  // read + written
  double read_tbps = 0;
  double products_tflops = 0;       // bf16 mma.sync, operands in registers
  std::optional<GpuMatmul> matmul;  // none: `matmul_why`
  std::string matmul_why;
};

/// Sizes: such that no cache and no launch is part of what is measured.
struct GpuCeilingSizes {
  int64_t memory_bytes = int64_t(4) << 30;
  int64_t matmul = 8192;
};

double measure_gpu_copy_tbps(int32_t device, GpuTimer& timer, const GpuCeilingSizes& sizes = {});
double measure_gpu_read_tbps(int32_t device, GpuTimer& timer, const GpuCeilingSizes& sizes = {});
/// All of them.
GpuCeilings measure_gpu_ceilings(int32_t device, GpuTimer& timer, GpuNormals& normals, const GpuCeilingSizes& sizes = {});

nlohmann::ordered_json to_json(const GpuCeilings& ceilings);

/// The kernel that reads, as CUDA C++.
extern const char* const kGpuReadText;

}  // namespace kvloom::cli
