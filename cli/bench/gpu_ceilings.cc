#include "cli/bench/gpu_ceilings.h"

#include "cli/bench/cublaslt.h"
#include "cli/bench/gpu_products.h"
#include "kvloom/support/check.h"

namespace kvloom::cli {

const char* const kGpuReadText = R"(// bench.read
extern "C" __global__ void sweep(const uint4* from, long long count, unsigned* to) {
  unsigned sum = 0;
  const long long step = (long long)gridDim.x * blockDim.x;
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  for (; i + 7 * step < count; i += 8 * step) {
    uint4 x[8];
#pragma unroll
    for (int u = 0; u < 8; ++u) x[u] = __ldcs(from + i + u * step);
#pragma unroll
    for (int u = 0; u < 8; ++u) sum += x[u].x ^ x[u].y ^ x[u].z ^ x[u].w;
  }
  if (sum == 0x12345678u) *to = sum;
}
)";

namespace {

constexpr int64_t kWorkspaceBytes = int64_t(64) << 20;
constexpr int kTrials = 4;  // launches that choose among the library's ways

GpuMatmul measure_matmul(int32_t device, const CublasLt& library, GpuTimer& timer, GpuNormals& normals, int64_t n) {
  const SquareMatmul matmul(library, n, kWorkspaceBytes);
  require(matmul.ways() > 0,
          "bench: cublasLtMatmulAlgoGetHeuristic: got no algorithm for {} x {} x {}, bf16, wanted one; name another cuBLASLt in "
          "KVLOOM_CUBLASLT",
          n, n, n);
  const GpuBuffer a = normals.make(n * n, DType::bf16), b = normals.make(n * n, DType::bf16);
  GpuBuffer d(device, n * n * size_of(DType::bf16)), workspace(device, kWorkspaceBytes);
  const auto work = [&](int way) {
    return GpuWork{[&, way] { matmul.run(way, a.data(), b.data(), d.data(), workspace.data(), timer.stream().handle()); }};
  };
  int best = 0;
  double best_us = 0;
  for (int way = 0; way < matmul.ways(); ++way) {
    timer.once_us(work(way));  // loads the kernel
    for (int i = 0; i < kTrials; ++i) {
      const double us = timer.once_us(work(way));
      if (best_us == 0 || us < best_us) best = way, best_us = us;
    }
  }
  GpuMatmul m;
  m.n = n;
  m.library = "cuBLASLt " + library.version();
  m.path = library.path();
  m.burst = timer.burst(work(best), true);
  m.sustained = timer.sustained(work(best), m.burst.us);
  const double flop = 2.0 * double(n) * double(n) * double(n);
  m.burst_tflops = 1e-6 * flop / m.burst.us;
  m.sustained_tflops = 1e-6 * flop / m.sustained.us;
  const GpuInfo gpu = gpus()[size_t(device)];
  m.burst_tensor_share = tensor_share(gpu, flop, m.burst);
  m.sustained_tensor_share = tensor_share(gpu, flop, m.sustained);
  return m;
}

nlohmann::ordered_json matmul_json(const GpuMatmul& m) {
  const auto side = [](const char* us, const GpuTimes& t, double tflops, double tensor_share) {
    nlohmann::ordered_json j{{"tflops", tflops}, {"tensor_share", known(tensor_share)}};
    add_times(j, us, t);
    return j;
  };
  return {{"n", m.n},
          {"dtype", "bf16"},
          {"library", m.library},
          {"path", m.path},
          {"burst", side("median_us", m.burst, m.burst_tflops, m.burst_tensor_share)},
          {"sustained", side("mean_us", m.sustained, m.sustained_tflops, m.sustained_tensor_share)}};
}

}  // namespace

double measure_gpu_copy_tbps(int32_t device, GpuTimer& timer, const GpuCeilingSizes& sizes) {
  const int64_t bytes = sizes.memory_bytes;
  GpuBuffer from(device, bytes), to(device, bytes);
  from.fill(1);
  return 2e-6 * double(bytes) / timer.burst({[&] { timer.stream().copy(to.data(), from.data(), bytes); }}, false).us;
}

double measure_gpu_read_tbps(int32_t device, GpuTimer& timer, const GpuCeilingSizes& sizes) {
  const int64_t bytes = sizes.memory_bytes;
  GpuBuffer from(device, bytes), to(device, 256);
  from.fill(1);
  GpuProgram program(device, "bench.read", kGpuReadText);
  const void* source = from.data();
  void* sink = to.data();
  long long count = bytes / 16;
  const uint32_t grid = uint32_t(gpus()[size_t(device)].num_sms) * 8;
  return 1e-6 * double(bytes) /
         timer.burst({[&] {
                       program.launch("sweep", grid, 256, {&source, &count, &sink}, timer.stream());
                     }},
                     true)  // beside the copies the clock is lower, and then it is the L2 cache that bounds a sweep
             .us;
}

GpuCeilings measure_gpu_ceilings(int32_t device, GpuTimer& timer, GpuNormals& normals, const GpuCeilingSizes& sizes) {
  GpuCeilings c;
  c.copy_tbps = measure_gpu_copy_tbps(device, timer, sizes);
  c.read_tbps = measure_gpu_read_tbps(device, timer, sizes);
  c.products_tflops = measure_gpu_products_tflops(device);
  const GpuContext current(device);
  const std::unique_ptr<CublasLt> library = CublasLt::find(c.matmul_why);
  if (!library) return c;
  try {
    c.matmul = measure_matmul(device, *library, timer, normals, sizes.matmul);
  } catch (const Error& e) {  // the rest of a run stands without it
    c.matmul_why = e.what();
  }
  return c;
}

nlohmann::ordered_json to_json(const GpuCeilings& c) {
  nlohmann::ordered_json j{{"copy_tbps", c.copy_tbps}, {"read_tbps", c.read_tbps}, {"products_tflops", c.products_tflops}};
  j["matmul"] = c.matmul ? matmul_json(*c.matmul) : nlohmann::ordered_json();
  if (!c.matmul) j["matmul_why"] = c.matmul_why;
  return j;
}

}  // namespace kvloom::cli
