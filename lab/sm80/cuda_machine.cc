// The lab's machine on a GPU: units are cubins, NAME.cubin in $LAB_CUBINS. Every wait is watched.
#include "lab.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <unistd.h>

#define CK(x)                                                                                       \
  do {                                                                                              \
    const int e = int(x);                                                                           \
    if (e) std::printf("CUDA error %d: %s (%s:%d)\n", e, #x, __FILE__, __LINE__), std::fflush(stdout), _exit(3); \
  } while (0)

namespace lab {
namespace {
class CudaUnit : public Unit {
 public:
  explicit CudaUnit(const std::string& path) {
    CK(cuModuleLoad(&module_, path.c_str()));
    read("lab_tiles", tiles, sizeof tiles);
    for (int k = 0; k < 3; ++k) {
      f_[k] = nullptr;
      if (cuModuleGetFunction(&f_[k], module_, kKindNames[k])) continue;
      kvloom::KernelFacts& f = facts[k];
      read((std::string(kKindNames[k]) + "_facts").c_str(), &f, sizeof f);
      CK(cuFuncSetAttribute(f_[k], CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, f.shared_bytes));
      int fit = 0;
      CK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&fit, f_[k], f.threads, size_t(f.shared_bytes)));
      if (fit < f.ctas_per_sm) std::printf("%s %s: %d CTAs fit an SM, %d aimed at\n", path.c_str(), kKindNames[k], fit, f.ctas_per_sm);
    }
  }
  void launch(Kind kind, const kvloom::AttendArgs& args, int ctas) override {
    void* a[] = {const_cast<kvloom::AttendArgs*>(&args)};
    CUlaunchAttribute attribute = {};
    attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = 1;
    CUlaunchConfig config = {};
    config.gridDimX = unsigned(ctas), config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = unsigned(facts[kind].threads), config.blockDimY = config.blockDimZ = 1;
    config.sharedMemBytes = unsigned(facts[kind].shared_bytes);
    config.hStream = cudaStreamPerThread;
    config.attrs = &attribute, config.numAttrs = early ? 1 : 0;
    CK(cuLaunchKernelEx(&config, f_[kind], a, nullptr));
  }

 private:
  /// A variable of the module.
  void read(const char* name, void* to, size_t bytes) {
    CUdeviceptr p;
    size_t n;
    CK(cuModuleGetGlobal(&p, &n, module_, name));
    CK(cuMemcpyDtoH(to, p, bytes));
  }
  CUmodule module_;
  CUfunction f_[3];
};

class Gpu : public Machine {
 public:
  Gpu() {
    CK(cudaFree(nullptr));
    cudaDeviceProp p;
    CK(cudaGetDeviceProperties(&p, 0));
    sms_ = p.multiProcessorCount;
    std::printf("%s, %d SMs\n", p.name, sms_);
    CK(cudaMalloc(&arena_, kArena));
    CK(cudaMemset(arena_, 0xff, kArena));
  }
  Unit& unit(const std::string& name) override {
    auto& u = units_[name];
    if (!u) u = std::make_unique<CudaUnit>(std::string(std::getenv("LAB_CUBINS") ? std::getenv("LAB_CUBINS") : ".") + "/" + name + ".cubin");
    return *u;
  }
  void* upload(const void* data, int64_t bytes) override {
    char* p = arena_ + used_;
    used_ += (bytes + 511) / 256 * 256;
    if (used_ > kArena) std::printf("arena full\n"), _exit(3);
    if (bytes) CK(cudaMemcpyAsync(p, data, size_t(bytes), cudaMemcpyHostToDevice, cudaStreamPerThread));
    return p;
  }
  void download(void* to, const void* from, int64_t bytes) override {
    if (bytes) CK(cudaMemcpyAsync(to, from, size_t(bytes), cudaMemcpyDeviceToHost, cudaStreamPerThread));
    finish();
  }
  void finish() override {
    const auto t0 = std::chrono::steady_clock::now();
    for (;;) {
      const cudaError_t e = cudaStreamQuery(cudaStreamPerThread);
      if (e == cudaSuccess) return;
      if (e != cudaErrorNotReady) CK(e);
      if (std::chrono::steady_clock::now() - t0 > std::chrono::seconds(10)) std::printf("a launch hangs\n"), std::fflush(stdout), _exit(4);
    }
  }
  void release() override {
    finish();
    CK(cudaMemsetAsync(arena_, 0xff, size_t(used_), cudaStreamPerThread));
    used_ = 0;
  }
  int sms() const override { return sms_; }

 private:
  static constexpr int64_t kArena = int64_t(1) << 30;
  char* arena_ = nullptr;
  int64_t used_ = 0;
  int sms_ = 0;
  std::map<std::string, std::unique_ptr<CudaUnit>> units_;
};
}  // namespace

Machine& machine() {
  static Gpu m;
  return m;
}
}  // namespace lab
