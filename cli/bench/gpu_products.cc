#include "cli/bench/gpu_products.h"

#include "kvloom/api/gpu.h"

#include <algorithm>

namespace kvloom::cli {
const char* const kGpuProductsText =
    "// bench.products\n#include \"kvloom/device/ptx/mma.cuh\"\n"
    R"(
extern "C" __global__ void __launch_bounds__(256) products(float* to, int rounds) {
  const unsigned seed = threadIdx.x * 2654435761u;
  unsigned a[4];
  for (int i = 0; i < 4; ++i) a[i] = 0x3c003c00u | (seed >> (3 + i) & 0x007f007fu);  // small bf16 numbers, all different
  float sums[8][4] = {};
  for (int r = 0; r < rounds; ++r) {
#pragma unroll
    for (int i = 0; i < 8; ++i) kvloom::ptx::warp_mma_m16n8k16<kvloom::DType::bf16>(sums[i], a, a[i & 3], a[(i + 1) & 3]);
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum += sums[i][0] + sums[i][1] + sums[i][2] + sums[i][3];
  if (sum == -1.0f) *to = sum;
}
)";

namespace {

constexpr int kBursts = 7, kRounds = 20000, kProductsARound = 8;
constexpr uint32_t kBlock = 256, kBlocksAnSm = 2;
constexpr double kFlopAProduct = 2.0 * 16 * 8 * 16;

}  // namespace

double measure_gpu_products_tflops(int32_t device) {
  GpuStream stream(device);
  GpuBuffer to(device, 256);
  GpuProgram program(device, "bench.products", kGpuProductsText);
  void* sink = to.data();
  int rounds = kRounds;
  const uint32_t grid = uint32_t(gpus()[size_t(device)].num_sms) * kBlocksAnSm;
  const double flop = double(grid) * (kBlock / 32) * kRounds * kProductsARound * kFlopAProduct;
  double best = 0.0;
  for (int i = 0; i < kBursts; ++i) {
    stream.forget_marks();
    const int32_t begin = stream.mark();
    program.launch("products", grid, kBlock, {&sink, &rounds}, stream);
    const int32_t end = stream.mark();
    best = std::max(best, flop / (1e-3 * double(stream.milliseconds(begin, end))) * 1e-12);
  }
  return best;
}

}  // namespace kvloom::cli
