// What the tensor cores of a GPU do at most through the instruction that the kernels of family sm80 use, measured now.
#pragma once

#include <cstdint>

namespace kvloom::cli {

/// TFLOP/s (a multiply-add is two) of independent bf16 products with fp32 sums (mma.sync m16n8k16), operands in registers, all SMs; the
/// best of a few bursts.
double measure_gpu_products_tflops(int32_t device);

/// Its kernel, as CUDA C++.
extern const char* const kGpuProductsText;

}  // namespace kvloom::cli
