// Tensor maps (runtime/boxes.cc): tensors that none describes are refused with what to do; those with a dimension of one, which has no stride,
// are not.
#include "kvloom/runtime/boxes.h"
#include "tests/cuda/engine_fixture.h"

namespace kvloom::test {
namespace {

/// Every kernel computes `spec` from now on. What is put into the cache has the heads of gpu_spec(): other tests find it there.
void use_spec(FakeGpu& gpu, const AttentionSpec& spec) {
  AttentionSpec kernel = gpu_spec();
  kernel.storage = spec.storage, kernel.page_size = spec.page_size;
  gpu.add_kernel(kernel);
  gpu.set_spec(&spec);
}

/// A step of many rows and its engine, on kernels that read K and V by boxes.
struct Boxed {
  Step step;
  GpuStep on_gpu;
  Engine engine;
  Plan plan;

  Boxed(FakeGpu& gpu, const AttentionSpec& spec, std::vector<Request> requests, const char* kernel = "sm90")
      : step(make_step(std::move(requests), spec)), on_gpu(step), engine(spec, step.capacity(), options(gpu, step.spec, kernel)), plan(engine.plan(step.batch)) {
    on_gpu.poison();
  }
  std::string refusal(const RunTensors& t) {
    return error_of([&] { engine.run(plan, t); }, ErrorCode::unsupported);
  }
  void expect_right(const RunTensors& t, const std::string& what) {
    on_gpu.poison();
    engine.run(plan, t);
    expect_device_right(on_gpu, step, what);
  }

 private:
  static EngineOptions options(FakeGpu& gpu, const AttentionSpec& spec, const char* kernel) {
    use_spec(gpu, spec);
    EngineOptions o = cuda_options();
    o.kernel = kernel;
    return o;
  }
};

AttentionSpec spec_of(Storage storage, int32_t kv_heads, int32_t heads) {
  AttentionSpec s = gpu_spec();
  s.storage = storage;
  s.page_size = storage == Storage::paged ? 16 : 1;
  s.num_kv_heads = kv_heads, s.num_qo_heads = heads;
  return s;
}

class GpuBoxes : public GpuEngine {
 protected:
  void SetUp() override {
    GpuEngine::SetUp();
    if (!gpu.is_fake() && gpus()[0].arch != "sm_90a") GTEST_SKIP() << "wants a GPU of compute capability 9.0";
  }
  void TearDown() override {
    gpu.set_spec(nullptr);
    GpuEngine::TearDown();
  }
};
using CudaBoxes = CudaEngine;

TEST_F(CudaBoxes, StridesWithoutAMapAreNamed) {
  AttentionSpec spec = gpu_spec();
  AttendParams good;
  good.q = good.kv.k = good.kv.v = reinterpret_cast<void*>(uintptr_t(1) << 20);
  good.q_token = 256, good.q_head = 64;
  good.kv.num_pages = 50;
  good.kv.k_page = good.kv.v_page = 2048, good.kv.k_token = good.kv.v_token = 128, good.kv.k_head = good.kv.v_head = 64;
  const auto refusal = [&](auto change) {
    AttendParams p = good;
    change(p);
    const std::string text = error_of([&] { runtime::make_boxes(spec, p, 32, 128); }, ErrorCode::unsupported);
    EXPECT_TRUE(has(text, "options.kernel = \"sm80\"")) << text;
    return text;
  };
  EXPECT_NO_THROW(runtime::make_boxes(spec, good, 32, 128));
  EXPECT_TRUE(has(refusal([](AttendParams& p) { p.kv.k_page = (int64_t(1) << 40) + 64; }),  // in steps of a head
                  "run: k: strides of pages and heads: got 1099511627840 and 64 elements for 50 pages"));
  EXPECT_TRUE(has(refusal([](AttendParams& p) { p.kv.v_token = int64_t(1) << 39; }),  // 2^40 bytes
                  "run: v: strides of pages, tokens and heads: got 2048, 549755813888 and 64 elements, wanted some that a tensor map can have "
                  "(cuTensorMapEncodeTiled says 1)"));
  EXPECT_TRUE(has(refusal([](AttendParams& p) { p.q_token = -256; }), "run: q: strides"));
  spec.num_kv_heads = 1;
  EXPECT_TRUE(has(refusal([](AttendParams& p) { p.kv.k_page = 0; }), "run: k: strides of pages and heads: got 0 and 0 elements, wanted none below 0, and one above"));
  spec.num_kv_heads = 2;
  spec.storage = Storage::ragged, spec.page_size = 1;
  EXPECT_NO_THROW(runtime::make_boxes(spec, good, 32, 128));
  EXPECT_TRUE(has(refusal([](AttendParams& p) { p.kv.k_head = -64; }), "run: k: strides of pages, tokens and heads: got 2048, 128 and -64 elements"));
}

// Heads that count down in memory: coordinates of boxes don't, and family sm80 reads them.
TEST_F(GpuBoxes, HeadsBackwards) {
  const auto backwards = [](const Boxed& b) {
    RunTensors t = b.on_gpu.tensors;
    t.k.data = static_cast<char*>(t.k.data) + 64 * 2, t.k.stride[2] = -64;
    return t;
  };
  const AttentionSpec spec = spec_of(Storage::paged, 2, 4);
  Boxed boxed(gpu, spec, {{60, 90}, {40, 70}});
  const std::string text = boxed.refusal(backwards(boxed));
  EXPECT_TRUE(has(text, "run: k: strides of pages and heads: got 2048 and -64 elements, wanted none below 0") && has(text, "options.kernel = \"sm80\"")) << text;
  Boxed plain(gpu, spec, {{60, 90}, {40, 70}}, "sm80");
  plain.step.tensors.k.data = static_cast<char*>(plain.step.tensors.k.data) + 64 * 2, plain.step.tensors.k.stride[2] = -64;  // REF's
  plain.expect_right(backwards(plain), "backwards");
}

// One page, one token, one head, no keys at all: dimensions of one have no stride, whatever the tensor says.
TEST_F(GpuBoxes, DimensionsOfOne) {
  for (const Storage storage : {Storage::paged, Storage::ragged}) {
    for (const int32_t kv_heads : {1, 2}) {
      const AttentionSpec spec = spec_of(storage, kv_heads, 32 * kv_heads);
      for (const std::vector<Request>& requests : {std::vector<Request>{{1, 1}}, {{3, 3}}, {{1, 60}}, {{2, 0}}, {{0, 0}, {5, 1}}}) {
        Step step;
        step.spec = spec, step.requests = requests, step.spare_pages = 0;
        step.make();
        use_spec(gpu, spec);
        GpuStep g(step);
        g.poison();
        EngineOptions options = cuda_options();
        options.kernel = "sm90";
        Engine engine(spec, step.capacity(), options);
        const Plan plan = engine.plan(step.batch);
        for (Tensor* t : {&g.tensors.q, &g.tensors.k, &g.tensors.v}) {
          for (int32_t d = 0; d + 1 < t->ndim; ++d) {
            if (t->shape[d] <= 1) t->stride[d] = 0;
          }
        }
        engine.run(plan, g.tensors);
        expect_device_right(g, step, engine.kernel_key() + " " + std::to_string(requests.back().q_len) + "/" + std::to_string(requests.back().kv_len));
      }
    }
  }
}

}  // namespace
}  // namespace kvloom::test
