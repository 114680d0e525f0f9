// Bits that must not move: fixed_split in any company, and answers that once came and went with timing or with a schedule. Offsets past
// 2^31.
#include "tests/cuda/engine_fixture.h"
#include "tests/support/one_request.h"

#include <numeric>

namespace kvloom::test {
namespace {

using GpuBits = GpuEngine;

// B92: a request's bits do not depend on the batch.
TEST_F(GpuBits, B92_FixedSplitInAnyCompany) {
  AttentionSpec spec = gpu_spec();
  gpu.add_kernel(spec, true);
  EngineOptions options = cuda_options();
  options.policy = Policy::fixed_split;
  const Capacity capacity = {65, 400, 80000, 0, 0};
  Engine engine(spec, capacity, options);
  Step alone = make_step({{3, 5000}}, spec, 2);
  GpuStep on_gpu(alone);
  on_gpu.poison();
  const Plan plan = engine.plan(alone.batch);
  engine.run(plan, on_gpu.tensors);
  bits_of(on_gpu, alone);
  expect_gpu_right(alone);
  for (const int32_t others : {1, 7, 64}) {
    std::vector<Request> requests = {{3, 5000}};
    for (int32_t i = 0; i < others; ++i) requests.push_back({1 + i % 5, 10 + 37 * i % 900});
    Step among = make_step(requests, spec, 2);  // the first request's values are those of `alone`: same seed, first in memory
    std::copy(alone.q.bytes.begin(), alone.q.bytes.end(), among.q.bytes.begin());
    const size_t page = size_t(16 * 2 * 64) * 2;  // bytes
    for (size_t i = 0; i < 313; ++i) {
      for (const auto& [from, to] : {std::pair{&alone.k, &among.k}, {&alone.v, &among.v}}) {
        std::copy_n(from->bytes.begin() + int64_t(size_t(alone.pages[i]) * page), page,
                    to->bytes.begin() + int64_t(size_t(among.pages[i]) * page));
      }
    }
    GpuStep g(among);
    g.poison();
    const Plan together = engine.plan(among.batch);
    engine.run(together, g.tensors);
    bits_of(g, among);
    EXPECT_EQ(std::memcmp(among.o.bytes.data(), alone.o.bytes.data(), alone.o.bytes.size()), 0) << others << " others";
    EXPECT_EQ(std::memcmp(among.lse.bytes.data(), alone.lse.bytes.data(), alone.lse.bytes.size()), 0) << others << " others";
  }
}

/// The same Q, K and V whatever the pages are: Step draws them token by token.
std::vector<char> bits_in_pages(FakeGpu& gpu, AttentionSpec spec, int32_t page_size, const std::vector<Request>& requests, Policy policy) {
  spec.storage = page_size > 0 ? Storage::paged : Storage::ragged;
  spec.page_size = page_size > 0 ? page_size : 1;
  AttentionSpec kernel = gpu_spec();  // order and pages are data of a kernel; other tests find those of gpu_spec() in the cache
  kernel.storage = spec.storage;
  kernel.head_dim_qk = kernel.head_dim_vo = spec.head_dim_qk;
  gpu.add_kernel(kernel);
  gpu.set_spec(&spec);
  Step s = make_step(requests, spec, 3);
  EngineOptions options = cuda_options();
  options.kernel = "sm90";
  options.policy = policy;
  Engine engine(spec, {8, 2000, 8000, 0, 0}, options);
  GpuStep g(s);
  g.poison();
  const Plan plan = engine.plan(s.batch);
  engine.run(plan, g.tensors);
  const std::vector<char> bits = bits_of(g, s);
  if (page_size == 8) expect_gpu_right(s, engine.kernel_key());
  gpu.set_spec(nullptr);
  return bits;
}

// Where keys lie moves nothing: a tile holds the same keys whatever fetched it. (Which keys are cut from which depends on how many rows a CTA
// has, and CTAs that fetch rows one by one have half of those that share boxes: so those are compared where nothing is cut.)
TEST_F(GpuBits, PagesOfAnySizeAndNone) {
  if (!gpu.is_fake() && gpus()[0].arch != "sm_90a") GTEST_SKIP() << "wants a GPU of compute capability 9.0";
  const std::vector<std::vector<Request>> steps = {{{200, 333}, {131, 131}, {77, 501}}, {{150, 701}, {1, 903}, {37, 37}, {3, 67}}, {{9, 1999}}};
  for (const int32_t dim : {64, 96, 128, 256}) {
    if (gpu.is_fake() && dim != 64 && dim != 96) continue;
    for (const bool causal : {true, false}) {
      AttentionSpec spec = gpu_spec();
      spec.head_dim_qk = spec.head_dim_vo = dim;
      spec.variant.range.causal = causal;
      for (const std::vector<Request>& requests : steps) {
        for (const Policy policy : {Policy::none, Policy::automatic}) {
          const std::vector<char> first = bits_in_pages(gpu, spec, 8, requests, policy);
          for (const int32_t page_size : {1, 3, 16, 24, 32, 64, 128, 256, 0}) {
            if (gpu.is_fake() && page_size != 24 && page_size != 0) continue;
            if (dim == 96 && page_size == 0) continue;  // has no kernel
            if (policy == Policy::automatic && page_size % 8 != 0) continue;
            EXPECT_TRUE(bits_in_pages(gpu, spec, page_size, requests, policy) == first)
                << "d" << dim << (causal ? ", causal" : "") << ", pages of " << page_size << ", policy " << int(policy);
          }
        }
      }
    }
  }
}

// B90: every length, the automatic schedule.
TEST_F(GpuBits, B90_EveryLength) {
  const int32_t step_by = gpu.is_fake() ? 37 : 1;
  for (const char* kernel : {"sm80", "sm90"}) {
    if (kernel == std::string("sm90") && !gpu.is_fake() && gpus()[0].arch != "sm_90a") continue;
    EngineOptions options = cuda_options();
    options.kernel = kernel;
    Engine engine(gpu_spec(), {2, 2, 4000, 0, 0}, options);
    for (int32_t kv_len = 1; kv_len <= 1100; kv_len += step_by) {
      Step s = make_step({{1, kv_len}, {1, 1101 - kv_len}}, gpu_spec(), uint32_t(kv_len));
      GpuStep g(s);
      g.poison();
      const Plan plan = engine.plan(s.batch);
      engine.run(plan, g.tensors);
      expect_device_right(g, s, std::string(kernel) + ", " + std::to_string(kv_len));
      if (HasFailure()) return;
    }
  }
}

// B89: the same bits fifty times, at the largest head dim of both families, and at 512.
TEST_F(GpuBits, B89_TheSameEveryTime) {
  for (const auto& [kernel, dim] : {std::pair{"sm90", 256}, {"sm80", 256}, {"sm80", 512}}) {
    if (kernel == std::string("sm90") && !gpu.is_fake() && gpus()[0].arch != "sm_90a") continue;
    AttentionSpec spec = gpu_spec();
    spec.num_qo_heads = 16;
    spec.head_dim_qk = spec.head_dim_vo = dim;
    gpu.add_kernel(spec);
    gpu.set_spec(&spec);
    EngineOptions options = cuda_options();
    options.kernel = kernel;
    Step s = make_step({{129, 129}, {3, 513}}, spec);
    Engine engine(spec, s.capacity(), options);
    GpuStep g(s);
    const Plan plan = engine.plan(s.batch);
    std::vector<char> first;
    for (int i = 0; i < (gpu.is_fake() ? 2 : 50); ++i) {
      g.poison();
      engine.run(plan, g.tensors);
      const std::vector<char> bits = bits_of(g, s);
      if (i == 0) first = bits;
      ASSERT_EQ(bits, first) << kernel << ", d" << dim << ", " << i;
    }
    expect_gpu_right(s, kernel);
  }
  gpu.set_spec(nullptr);
}

// B38, B39: pages whose offsets lie on either side of 2^31 elements and 2^32 bytes give the bits of pages at the front: of both families, of steps
// of few rows, of many and of both.
TEST_F(GpuBits, B38_B39_PagesPastTwoToThe31) {
  if (gpu.is_fake()) GTEST_SKIP() << "wants a GPU, and 9 GB of its memory; bugs/overflow_test.cc has the CPU's offsets";
  const int64_t page = 16 * 2 * 64, page_bytes = page * 2;  // elements, bytes
  const int64_t edge = (int64_t(1) << 31) / page, pages = edge + 60;
  GpuBuffer k(0, pages * page_bytes), v(0, pages * page_bytes);
  k.fill(0xff), v.fill(0xff);
  const std::vector<Request> steps[] = {{{2, 300}, {1, 90}}, {{40, 300}, {70, 90}}, {{40, 300}, {1, 90}}};
  for (const std::vector<Request>& requests : steps) {
    Step s = make_step(requests);
    GpuStep g(s);
    g.tensors.k = Tensor::dense(k.data(), DType::bf16, {pages, 16, 2, 64});
    g.tensors.v = Tensor::dense(v.data(), DType::bf16, {pages, 16, 2, 64});
    for (const char* kernel : {"sm80", "sm90"}) {
      if (kernel == std::string("sm90") && gpus()[0].arch != "sm_90a") continue;
      EngineOptions options = cuda_options();
      options.kernel = kernel;
      Engine engine(s.spec, large(), options);
      std::vector<char> front;
      for (const int64_t first : {int64_t(0), edge / 2 - 9, edge - 13, edge + 20}) {
        std::vector<int32_t> ids(s.pages.size());
        for (size_t i = 0; i < ids.size(); ++i) {
          ids[i] = int32_t(first + int64_t(i));
          k.upload(s.k.bytes.data() + int64_t(s.pages[i]) * page_bytes, page_bytes, ids[i] * page_bytes);
          v.upload(s.v.bytes.data() + int64_t(s.pages[i]) * page_bytes, page_bytes, ids[i] * page_bytes);
        }
        const GpuBuffer there = put(ids);
        g.tensors.pages = IndexView(there.as<int32_t>(), int64_t(ids.size()));
        Batch batch = s.batch;
        batch.pages = IndexView(ids.data(), int64_t(ids.size()));
        g.poison();
        const Plan plan = engine.plan(batch);
        engine.run(plan, g.tensors);
        const std::vector<char> bits = bits_of(g, s);
        if (first == 0) front = bits;
        EXPECT_EQ(bits, front) << kernel << ", from page " << first;
      }
      expect_gpu_right(s, kernel);
    }
  }
}

// B41: ragged K and V of 4.3 million tokens, whose bytes and elements pass 2^32, and a second row of Q and O 2^31 elements behind the first. Through
// a window at the far end the answer is that of the last keys alone; without one, and queries of zeros, the LSE counts every key.
TEST_F(GpuBits, B41_FourMillionKeysAndRowsPastTwoToThe31) {
  if (gpu.is_fake()) GTEST_SKIP() << "wants a GPU, and 27 GB of its memory; bugs/overflow_test.cc has the CPU's offsets";
  const int32_t kv_len = 4300000, window = 300, heads = 8, dim = 64;
  AttentionSpec spec = gpu_spec();
  spec.num_qo_heads = spec.num_kv_heads = heads;
  spec.storage = Storage::ragged;
  spec.page_size = 1;
  spec.variant.range = {true, window, -1};
  Step last = make_step({{2, window + 2}}, spec);  // the same in small
  const int64_t row = heads * dim, pitch = int64_t(1) << 31;
  GpuBuffer k(0, kv_len * row * 2), v(0, kv_len * row * 2), q(0, (pitch + row) * 2), o(0, (pitch + row) * 2);
  k.fill(0), v.fill(0);
  const int64_t end_bytes = (window + 2) * row * 2;  // behind them the step has tokens to spare
  k.upload(last.k.bytes.data(), end_bytes, kv_len * row * 2 - end_bytes);
  v.upload(last.v.bytes.data(), end_bytes, kv_len * row * 2 - end_bytes);
  GpuStep small(last);
  RunTensors t = small.tensors;
  t.q = Tensor::dense(q.data(), DType::bf16, {2, heads, dim});
  t.k = Tensor::dense(k.data(), DType::bf16, {kv_len, heads, dim});
  t.v = Tensor::dense(v.data(), DType::bf16, {kv_len, heads, dim});
  t.o = Tensor::dense(o.data(), DType::bf16, {2, heads, dim});
  t.q.stride[0] = t.o.stride[0] = pitch;
  const OneRequest one_request(2, kv_len);
  AttentionSpec whole = spec;
  whole.variant.range.left = -1;
  for (const char* kernel : {"sm80", "sm90"}) {
    if (kernel == std::string("sm90") && gpus()[0].arch != "sm_90a") continue;
    for (const Policy policy : {Policy::automatic, Policy::none, Policy::stream}) {
      const std::string what = std::string(kernel) + ", " + name_of(policy);
      EngineOptions options = cuda_options();
      options.kernel = kernel;
      options.policy = policy;
      for (int64_t i = 0; i < 2; ++i) q.upload(last.q.bytes.data() + i * row * 2, row * 2, i * pitch * 2);
      small.poison();
      o.fill(0xff);
      Engine engine(spec, {1, 2, kv_len, 0, 0}, options);
      engine.run(engine.plan(one_request.batch), t);
      small.download(last);  // the LSE; O lies elsewhere
      for (int64_t i = 0; i < 2; ++i) o.download(last.o.bytes.data() + i * row * 2, row * 2, i * pitch * 2);
      expect_gpu_right(last, what);

      if (policy == Policy::none) continue;  // one CTA a head would read 4 GB
      q.fill(0);
      small.poison();
      Engine all(whole, {1, 2, kv_len, 0, 0}, options);
      all.run(all.plan(one_request.batch), t);
      small.download(last);
      for (int64_t i = 0; i < last.lse.count(); ++i) ASSERT_NEAR(last.lse.get(i), std::log(double(kv_len)), 6e-5) << what;
    }
  }
}

// B30: the bits of a mask pass 2^32. Rows on either side of bits 2^31 and 2^32, and the last, keep every other key of their window; all
// others keep nothing.
void expect_rows_of_a_long_mask(const char* kernel, int32_t dim) {
  const int32_t q_len = 32768, kv_len = 131072, window = 7;
  AttentionSpec spec = gpu_spec();
  spec.num_qo_heads = spec.num_kv_heads = 1;
  spec.head_dim_qk = spec.head_dim_vo = dim;
  spec.storage = Storage::ragged;
  spec.page_size = 1;
  spec.variant.range = {true, window, -1};
  spec.variant.custom_mask = true;
  const int64_t mask_bytes = int64_t(q_len) * kv_len / 8;
  GpuBuffer mask(0, mask_bytes);
  mask.fill(0);
  const std::vector<int32_t> sampled{0, 16383, 16384, 32767};
  for (const int32_t i : sampled) {
    const int64_t p = int64_t(kv_len) - q_len + i, first = int64_t(i) * kv_len + p - window;  // bits first, first + 2, ...
    std::vector<uint8_t> bytes(3, 0);
    for (int64_t bit = first; bit <= first + window; bit += 2) bytes[size_t(bit / 8 - first / 8)] |= uint8_t(1 << (bit % 8));
    mask.upload(bytes.data(), std::min<int64_t>(3, mask_bytes - first / 8), first / 8);
  }
  Array q(DType::bf16, {q_len, 1, dim}), k(DType::bf16, {kv_len, 1, dim}), v(DType::bf16, {kv_len, 1, dim}),
      o(DType::bf16, {q_len, 1, dim});
  q.normal(1), k.normal(2), v.normal(3);
  const GpuBuffer q_there = put(q.bytes), k_there = put(k.bytes), v_there = put(v.bytes), o_there = put(o.bytes);
  const GpuBuffer indptr_there = put(std::vector<int64_t>{0, mask_bytes});
  const OneRequest one_request(q_len, kv_len);
  const Batch& batch = one_request.batch;
  RunTensors t;
  t.q = Tensor::dense(q_there.data(), DType::bf16, {q_len, 1, dim});
  t.k = Tensor::dense(k_there.data(), DType::bf16, {kv_len, 1, dim});
  t.v = Tensor::dense(v_there.data(), DType::bf16, {kv_len, 1, dim});
  t.o = Tensor::dense(o_there.data(), DType::bf16, {q_len, 1, dim});
  t.mask = mask.as<uint8_t>();
  t.mask_indptr = indptr_there.as<int64_t>();
  EngineOptions options = cuda_options();
  options.kernel = kernel;
  Engine engine(spec, {1, q_len, kv_len, 0, 0}, options);
  const Plan plan = engine.plan(batch);
  engine.run(plan, t);
  gpu_synchronize(0);
  o_there.download(o.bytes.data(), o_there.size());
  for (int32_t i = 0; i < q_len; ++i) {
    const bool keeps = std::find(sampled.begin(), sampled.end(), i) != sampled.end();
    double weights[window + 1] = {}, sum = 0.0;
    const int64_t p = int64_t(kv_len) - q_len + i;
    for (int64_t j = 0; keeps && j <= window; j += 2) {
      double s = 0.0;
      for (int32_t d = 0; d < dim; ++d) s += double(at(q, i, 0, d)) * at(k, p - window + j, 0, d);
      sum += weights[j] = std::exp(s / std::sqrt(double(dim)));
    }
    for (int32_t d = 0; d < dim; ++d) {
      double want = 0.0;
      for (int64_t j = 0; keeps && j <= window; j += 2) want += weights[j] / sum * at(v, p - window + j, 0, d);
      ASSERT_NEAR(at(o, i, 0, d), want, keeps ? 0.02 : 0.0) << "row " << i << ", dim " << d;
    }
  }
}

TEST_F(GpuBits, B30_MaskBitsPastTwoToThe32) {
  if (gpu.is_fake()) GTEST_SKIP() << "wants a GPU's speed; bugs/overflow_test.cc reads the same bits through CustomMask::keep32 on the CPU";
  for (const auto& [kernel, dim] : {std::pair{"sm80", 16}, {"sm90", 64}}) {
    if (kernel == std::string("sm90") && gpus()[0].arch != "sm_90a") continue;
    SCOPED_TRACE(kernel);
    expect_rows_of_a_long_mask(kernel, dim);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace kvloom::test
