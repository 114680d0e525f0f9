// What tests of Hopper's kernels share: they run on kernels compiled for less than their spec, and say more on emulated ones (lab/sm90/emulate.sh) and on a GPU than
// on the CPU's.
#pragma once

#include "tests/cuda/engine_fixture.h"

namespace kvloom::test {

inline AttentionSpec hopper_spec(Storage storage, int32_t page_size, int32_t kv_heads, int32_t heads) {
  AttentionSpec s = gpu_spec();
  s.storage = storage, s.page_size = page_size;
  s.num_kv_heads = kv_heads, s.num_qo_heads = heads;
  return s;
}

class HopperEngine : public GpuEngine {
 protected:
  void SetUp() override {
    GpuEngine::SetUp();
    if (!gpu.is_fake() && gpus()[0].arch != "sm_90a") GTEST_SKIP() << "wants a GPU of compute capability 9.0";
  }
  void TearDown() override {
    gpu.set_spec(nullptr);
    GpuEngine::TearDown();
  }

  /// Kernels that stand for the spec's from now on.
  void use_kernels_for(const AttentionSpec& spec) {
    AttentionSpec compiled = gpu_spec();
    compiled.storage = spec.storage, compiled.variant = spec.variant, compiled.kv_dtype = spec.kv_dtype;
    compiled.page_size = spec.storage == Storage::paged ? compiled.page_size : 1;
    compiled.head_dim_qk = spec.head_dim_qk, compiled.head_dim_vo = spec.head_dim_vo;
    gpu.add_kernel(compiled);
    gpu.set_spec(&spec);
  }
  /// Runs `step` twice; `capacity`: of the engine. Its header says what was planned.
  PlanHeader expect_right(Step& step, const EngineOptions& options, const Capacity& capacity, const std::string& what) {
    use_kernels_for(step.spec);
    Engine engine(step.spec, capacity, options);
    const Plan plan = engine.plan(step.batch);
    GpuStep g(step);
    for (int again = 0; again < 2; ++again) {
      g.poison();
      engine.run(plan, g.tensors);
      expect_device_right(g, step, what);
    }
    return *plan.view().header;
  }
  PlanHeader expect_right(Step& step, const EngineOptions& options, const std::string& what) { return expect_right(step, options, step.capacity(), what); }

  static EngineOptions options(const char* kernel, int32_t ctas = 0) {
    EngineOptions o = cuda_options();
    o.kernel = kernel, o.num_ctas = ctas;
    return o;
  }
};

}  // namespace kvloom::test
