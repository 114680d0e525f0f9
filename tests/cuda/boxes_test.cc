// Tensor maps (runtime/boxes.cc): tensors that none describes are refused with what to do; those with a dimension of one, which has no stride,
// are not.
#include "kvloom/attn/mask.h"
#include "kvloom/runtime/boxes.h"
#include "tests/cuda/hopper_fixture.h"

#include <cmath>
#include <cstring>
#include <random>

namespace kvloom::test {
namespace {

/// Every kernel computes `spec` from now on. What is put into the cache has the heads of gpu_spec(): other tests find it there.
void use_spec(FakeGpu& gpu, const AttentionSpec& spec) {
  AttentionSpec kernel = gpu_spec();
  kernel.storage = spec.storage, kernel.page_size = spec.page_size;
  kernel.kv_dtype = spec.kv_dtype, kernel.head_dim_qk = spec.head_dim_qk, kernel.head_dim_vo = spec.head_dim_vo;
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

class GpuBoxes : public HopperEngine {};
using CudaBoxes = CudaEngine;

TEST_F(CudaBoxes, ATensorIsDescribedOnce) {
  AttentionSpec spec = gpu_spec();
  AttendParams p;
  p.q = p.kv.k = reinterpret_cast<void*>(uintptr_t(1) << 21);
  p.o = reinterpret_cast<void*>(uintptr_t(1) << 22);
  p.kv.v = reinterpret_cast<void*>(uintptr_t(1) << 23);
  p.q_token = p.o_token = 256, p.q_head = p.o_head = 64;
  p.kv.num_pages = 50;
  p.kv.k_page = p.kv.v_page = 2048, p.kv.k_token = p.kv.v_token = 128, p.kv.k_head = p.kv.v_head = 64;
  const auto asked = [&] {
    gpu.reset();
    const AttendBoxes boxes = runtime::make_boxes(spec, p, {32, 128});
    return std::pair{gpu.count("cuTensorMapEncodeTiled"), boxes};
  };
  const auto [first, boxes] = asked();
  EXPECT_EQ(first, 4);
  const auto [again, same] = asked();
  EXPECT_EQ(again, 0);
  EXPECT_EQ(std::memcmp(&same, &boxes, sizeof boxes), 0);
  p.kv.num_pages = 51;
  EXPECT_EQ(asked().first, 2) << "K and V have other sizes now";
  p.kv.v = reinterpret_cast<void*>(uintptr_t(1) << 24);
  const auto [moved, other] = asked();
  EXPECT_EQ(moved, 1);
  EXPECT_NE(std::memcmp(&other.v.map, &boxes.v.map, sizeof(TensorMap)), 0);
}

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
    const std::string text = error_of([&] { runtime::make_boxes(spec, p, {32, 128}); }, ErrorCode::unsupported);
    EXPECT_TRUE(has(text, "options.kernel = \"sm80\"")) << text;
    return text;
  };
  EXPECT_NO_THROW(runtime::make_boxes(spec, good, {32, 128}));
  EXPECT_TRUE(has(refusal([](AttendParams& p) { p.kv.k_page = (int64_t(1) << 40) + 64; }),  // in steps of a head
                  "run: k: strides of pages and heads: got 1099511627840 and 64 elements for 50 pages"));
  EXPECT_TRUE(has(refusal([](AttendParams& p) { p.kv.v_token = int64_t(1) << 39; }),  // 2^40 bytes
                  "run: v: strides of pages, tokens and heads: got 2048, 549755813888 and 64 elements, wanted some that a tensor map can have "
                  "(cuTensorMapEncodeTiled says 1)"));
  EXPECT_EQ(runtime::make_boxes(spec, [&] { AttendParams p = good; p.q_token = -256; return p; }(), {32, 128}).query_tokens, 0) << "row by row";
  spec.num_kv_heads = 1;
  EXPECT_TRUE(has(refusal([](AttendParams& p) { p.kv.k_page = 0; }), "run: k: strides of pages and heads: got 0 and 0 elements, wanted none below 0, and one above"));
  spec.num_kv_heads = 2;
  spec.storage = Storage::ragged, spec.page_size = 1;
  EXPECT_NO_THROW(runtime::make_boxes(spec, good, {32, 128}));
  EXPECT_TRUE(has(refusal([](AttendParams& p) { p.kv.k_head = -64; }), "run: k: strides of pages, tokens and heads: got 2048, 128 and -64 elements"));
}

// Heads that count down in memory: coordinates of boxes don't, and family sm80 reads them.
TEST_F(GpuBoxes, HeadsBackwards) {
  const auto backwards = [](const Boxed& b) {
    RunTensors t = b.on_gpu.tensors;
    t.k.data = static_cast<char*>(t.k.data) + 64 * 2, t.k.stride[2] = -64;
    return t;
  };
  const AttentionSpec spec = hopper_spec(Storage::paged, 16, 2, 4);
  Boxed boxed(gpu, spec, {{60, 90}, {40, 70}});
  const std::string text = boxed.refusal(backwards(boxed));
  EXPECT_TRUE(has(text, "run: k: strides of pages and heads: got 2048 and -64 elements, wanted none below 0") && has(text, "options.kernel = \"sm80\"")) << text;
  Boxed plain(gpu, spec, {{60, 90}, {40, 70}}, "sm80");
  plain.step.tensors.k.data = static_cast<char*>(plain.step.tensors.k.data) + 64 * 2, plain.step.tensors.k.stride[2] = -64;  // REF's
  plain.expect_right(backwards(plain), "backwards");
}

/// Rows that are fetched one by one land in one CTA: not in the kernel whose CTAs share boxes.
TEST_F(GpuBoxes, PagesTooSmallForBoxes) {
  AttentionSpec spec = hopper_spec(Storage::paged, 16, 2, 8);
  spec.page_size = 3;
  Boxed boxed(gpu, spec, {{60, 90}, {40, 70}});
  boxed.expect_right(boxed.on_gpu.tensors, "pages of 3");
}

// Keys that no row keeps at the list's end: NaN, ids wild, or no entries at all.
TEST_F(GpuBoxes, KeysBehindTheLastKept) {
  for (const Storage storage : {Storage::paged, Storage::ragged}) {
    AttentionSpec spec = hopper_spec(storage, storage == Storage::paged ? 16 : 1, 2, 8);
    Step step;
    step.spec = spec, step.requests = {{100, 300}};
    step.make();
    static int32_t q_pos0[1] = {52};  // keeps keys up to 151
    step.batch.q_pos0 = q_pos0;
    const int64_t width = 2 * 64;
    for (int32_t t = 152; t < 300; ++t) {
      const int64_t slot = storage == Storage::paged ? int64_t(step.pages[size_t(t / 16)]) * 16 + t % 16 : t;
      for (int64_t i = 0; i < width; ++i) step.k.set(slot * width + i, NAN), step.v.set(slot * width + i, NAN);
    }
    if (storage == Storage::paged) {
      for (size_t i = 10; i < step.pages.size(); ++i) step.pages[i] = 0x7fffffff;
    }
    use_spec(gpu, spec);
    for (const char* kernel : {"sm80", "sm90"}) {
      EngineOptions options = cuda_options();
      options.kernel = kernel;
      Engine engine(spec, step.capacity(), options);
      const Plan plan = engine.plan(step.batch);
      GpuStep g(step);
      g.poison();
      engine.run(plan, g.tensors);
      expect_device_right(g, step, std::string(kernel) + (storage == Storage::paged ? " paged" : " ragged"));
    }
  }
}

TEST_F(GpuBoxes, NoPagesAtAll) {
  for (const int32_t page_size : {1, 16}) {
    AttentionSpec spec = hopper_spec(Storage::paged, 16, 2, 8);
    spec.page_size = page_size;
    Step step;
    step.spec = spec, step.requests = {{60, 0}}, step.spare_pages = 0;
    step.make();
    use_spec(gpu, spec);
    EngineOptions options = cuda_options();
    options.kernel = "sm90";
    Engine engine(spec, step.capacity(), options);
    const Plan plan = engine.plan(step.batch);
    GpuStep g(step);
    g.poison();
    EXPECT_NO_THROW(engine.run(plan, g.tensors)) << page_size;
  }
}

TEST_F(GpuBoxes, APrefixAlone) {
  AttentionSpec spec = hopper_spec(Storage::paged, 16, 2, 8);
  spec.variant.range.left = 10;
  Step step;
  step.spec = spec, step.requests = {{100, 300}};
  step.make();
  static int32_t q_pos0[1] = {400}, prefix[1] = {5};
  step.batch.q_pos0 = q_pos0, step.batch.prefix = prefix;
  const int64_t width = 2 * 64;
  for (int32_t t = 5; t < 300; ++t) {
    const int64_t slot = int64_t(step.pages[size_t(t / 16)]) * 16 + t % 16;
    for (int64_t i = 0; i < width; ++i) step.k.set(slot * width + i, NAN), step.v.set(slot * width + i, NAN);
  }
  use_spec(gpu, spec);
  EngineOptions options = cuda_options();
  options.kernel = "sm90";
  Engine engine(spec, step.capacity(), options);
  const Plan plan = engine.plan(step.batch);
  GpuStep g(step);
  g.poison();
  engine.run(plan, g.tensors);
  expect_device_right(g, step, "prefix alone");
}

// Rows of O that count down in memory are written row by row.
TEST_F(GpuBoxes, OutputBackwards) {
  const AttentionSpec spec = hopper_spec(Storage::paged, 16, 2, 8);
  Step step;
  step.spec = spec, step.requests = {{60, 90}};
  step.make();
  use_spec(gpu, spec);
  for (const char* kernel : {"sm80", "sm90"}) {
    EngineOptions options = cuda_options();
    options.kernel = kernel;
    Engine engine(spec, step.capacity(), options);
    const Plan plan = engine.plan(step.batch);
    GpuStep g(step);
    g.poison();
    engine.run(plan, g.tensors);
    expect_device_right(g, step, kernel);
    g.download(step);
    const std::vector<char> forward(step.o.bytes.begin(), step.o.bytes.end());
    g.poison();
    RunTensors t = g.tensors;
    t.o.data = static_cast<char*>(t.o.data) + 59 * t.o.stride[0] * 2, t.o.stride[0] = -t.o.stride[0];
    engine.run(plan, t);
    g.download(step);
    const size_t row = forward.size() / 60;
    for (size_t r = 0; r < 60; ++r) EXPECT_EQ(std::memcmp(&forward[r * row], &step.o.bytes[(59 - r) * row], row), 0) << kernel << ", token " << r;
  }
}

// Random lists, positions, windows and prefixes: values of keys that nobody keeps are NaN, pages of nothing else wild. `few`: rows of queries, which
// have a kernel of their own, of fp8 keys too.
void expect_unkept_keys_unseen(FakeGpu& gpu, int seed, bool few) {
  std::mt19937 rnd(seed);
  const auto pick = [&](std::initializer_list<int> v) { return *(v.begin() + rnd() % v.size()); };
  AttentionSpec spec = hopper_spec(Storage::paged, 16, few ? pick({1, 2, 3, 4, 8}) : pick({1, 2, 3}), 0);
  const int g = pick({1, 2, 3, 4, 5, 8, 16, 7});
  spec.num_qo_heads = spec.num_kv_heads * g;
  spec.page_size = pick({1, 2, 3, 5, 8, 16, 24, 64});
  if (rnd() % 3 == 0) spec.head_dim_qk = spec.head_dim_vo = 128;
  if (few && rnd() % 2) spec.kv_dtype = DType::e4m3;
  spec.variant.range.causal = rnd() % 3 != 0;
  if (rnd() % 2) spec.variant.range.left = int(rnd() % 200);
  if (rnd() % 3 == 0) spec.variant.range.right = int(rnd() % 60);
  spec.variant.sink = rnd() % 3 == 0;
  Step step;
  step.seed = seed + 1;
  step.spec = spec;
  const int n = 1 + rnd() % 3;
  for (int i = 0; i < n; ++i) step.requests.push_back({int(rnd() % (few ? 16 / g + 1 : rnd() % 2 ? 150 : 12)), int(rnd() % 500)});
  if (!few) step.requests.push_back({40 + int(rnd() % 90), 10 + int(rnd() % 400)});
  step.make();
  std::vector<int32_t> q_pos0, prefix;
  for (const Request& r : step.requests) {
    q_pos0.push_back(rnd() % 2 ? std::max(0, r.kv_len - r.q_len) : int(rnd() % (r.kv_len + 60)));
    prefix.push_back(rnd() % 2 ? 0 : int(rnd() % 150));
  }
  if (rnd() % 2) step.batch.q_pos0 = q_pos0.data();
  else for (size_t r = 0; r < q_pos0.size(); ++r) q_pos0[r] = step.requests[r].kv_len - step.requests[r].q_len;
  if (rnd() % 2) step.batch.prefix = prefix.data();
  else prefix.assign(prefix.size(), 0);
  const int64_t width = int64_t(spec.num_kv_heads) * spec.head_dim_qk, spare = step.list_indptr.back();
  for (size_t r = 0; r < step.requests.size(); ++r) {
    const Request q = step.requests[r];
    std::vector<char> kept(q.kv_len, 0);
    for (int i = 0; i < q.q_len; ++i)
      for (int t = 0; t < q.kv_len; ++t) kept[t] |= keeps(spec.variant.range, prefix[r], q_pos0[r] + i, t);
    for (int t = 0; t < q.kv_len; ++t) {
      if (kept[t]) continue;
      const int64_t slot = int64_t(step.pages[size_t(step.list_indptr[r] + t / spec.page_size)]) * spec.page_size + t % spec.page_size;
      for (int64_t i = 0; i < width; ++i) step.k.set(slot * width + i, NAN), step.v.set(slot * width + i, NAN);
    }
    for (int p = 0; p * spec.page_size < q.kv_len; ++p) {
      bool any = false;
      for (int t = p * spec.page_size; t < std::min(q.kv_len, (p + 1) * spec.page_size); ++t) any |= kept[t];
      if (!any) step.pages[size_t(step.list_indptr[r] + p)] = int(spare);
    }
  }
  AttentionSpec kernel = gpu_spec();
  kernel.storage = spec.storage, kernel.head_dim_qk = kernel.head_dim_vo = spec.head_dim_qk, kernel.kv_dtype = spec.kv_dtype;  // ranges and sinks are no part of a key
  gpu.add_kernel(kernel);
  gpu.set_spec(&spec);
  EngineOptions options = cuda_options();
  options.kernel = "sm90";
  if (few) options.num_ctas = pick({1, 3, 7, 132});
  std::string what = "seed " + std::to_string(seed) + " page " + std::to_string(spec.page_size) + " g " + std::to_string(g) + " d " + std::to_string(spec.head_dim_qk) + " " + name_of(spec.kv_dtype);
  Engine engine(spec, step.capacity(), options);
  const Plan plan = engine.plan(step.batch);
  GpuStep gs(step);
  if (rnd() % 3 == 0) gs.tensors.bare_state = step.tensors.bare_state = true;
  gs.poison();
  engine.run(plan, gs.tensors);
  expect_device_right(gs, step, what);
}
TEST_F(GpuBoxes, KeysThatNobodyKeepsAreNeverSeen) {
  for (int seed = 0; seed < 40 && !HasFailure(); ++seed) expect_unkept_keys_unseen(gpu, seed, false);
}
TEST_F(GpuBoxes, KeysThatNobodyKeepsAreNeverStreamed) {
  for (int seed = 0; seed < 60 && !HasFailure(); ++seed) expect_unkept_keys_unseen(gpu, seed, true);
}

// One page, one token, one head, no keys at all: dimensions of one have no stride, whatever the tensor says.
/// A stride that nothing is reached by may be 0, of keys of one byte, too.
TEST_F(GpuBoxes, DimensionsOfOne) {
  using Shape = std::tuple<Storage, DType, int32_t>;
  const auto with = [&](const Shape& shape, const std::vector<Request>& requests) {
    const auto [storage, kv_dtype, kv_heads] = shape;
    AttentionSpec spec = hopper_spec(storage, storage == Storage::paged ? 16 : 1, kv_heads, (is_fp8(kv_dtype) ? 4 : 32) * kv_heads);  // fp8 keys meet few rows alone by boxes
    spec.kv_dtype = kv_dtype;
    if (is_fp8(kv_dtype)) spec.head_dim_qk = spec.head_dim_vo = 128;
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
  };
  for (const Storage storage : {Storage::paged, Storage::ragged}) {
    for (const int32_t kv_heads : {1, 2}) {
      for (const std::vector<Request>& requests : {std::vector<Request>{{1, 1}}, {{3, 3}}, {{1, 60}}, {{2, 0}}, {{0, 0}, {5, 1}}}) {
        for (const DType kv_dtype : {DType::bf16, DType::e4m3}) with({storage, kv_dtype, kv_heads}, requests);
      }
    }
  }
}

}  // namespace
}  // namespace kvloom::test
