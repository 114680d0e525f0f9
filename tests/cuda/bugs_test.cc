// What once broken engines taught, on a GPU: entries whose inputs are no case of the table (those are GpuTable.*/B01_...), on every family of
// kernels. The same on the CPU, with the story: tests/bugs.
#include "tests/cuda/engine_fixture.h"

#include <cmath>

namespace kvloom::test {
namespace {

class GpuBugs : public GpuEngine {
 protected:
  /// Heads, range and scale are data of a kernel: those that the fake driver's begin with stay gpu_spec()'s, which other tests rely on.
  void add_kernel_of(AttentionSpec spec, bool fixed_split = false) {
    const AttentionSpec usual = gpu_spec();
    spec.num_qo_heads = usual.num_qo_heads, spec.num_kv_heads = usual.num_kv_heads;
    spec.variant.range = usual.variant.range, spec.sm_scale = usual.sm_scale;
    gpu.add_kernel(spec, fixed_split);
  }
  /// f(options, what): each family of kernels that the GPU runs, with each way of handing out work.
  template <class F>
  void on_every_path(const AttentionSpec& spec, F&& f) {
    add_kernel_of(spec);
    gpu.set_spec(&spec);
    for (const char* kernel : {"sm80", "sm90"}) {
      if (kernel == std::string("sm90") && !gpu.is_fake() && gpus()[0].arch != "sm_90a") continue;
      for (const Policy policy : {Policy::none, Policy::stream, Policy::fill}) {
        EngineOptions options = cuda_options();
        options.kernel = kernel;
        options.policy = policy;
        f(options, std::string(kernel) + ", " + name_of(policy));
      }
    }
    gpu.set_spec(nullptr);
  }
  /// O and LSE of `s` come from the GPU.
  static void run(Step& s, const EngineOptions& options, const Capacity& capacity) {
    Engine engine(s.spec, capacity, options);
    GpuStep g(s);
    g.poison();
    const Plan plan = engine.plan(s.batch);
    engine.run(plan, g.tensors);
    g.download(s);
  }
  static void run(Step& s, const EngineOptions& options) { run(s, options, s.capacity()); }
};

AttentionSpec plain_spec() {
  AttentionSpec spec = gpu_spec();
  spec.variant.range.causal = false;
  spec.sm_scale = 1.0f;
  return spec;
}

/// Where token `j` of request `r` has head `h` in K or V.
int64_t slot_of(const Step& s, int32_t r, int32_t j, int32_t h) {
  const int32_t size = s.spec.page_size;
  return ((int64_t(s.pages[size_t(s.list_indptr[size_t(r)] + j / size)]) * size + j % size) * s.spec.num_kv_heads + h) * s.spec.head_dim_qk;
}

void set_key(Step& s, int32_t j, float key, float value) {
  for (int32_t h = 0; h < s.spec.num_kv_heads; ++h) {
    for (int32_t i = 0; i < s.spec.head_dim_qk; ++i) s.k.set(slot_of(s, 0, j, h) + i, key), s.v.set(slot_of(s, 0, j, h) + i, value);
  }
}

TEST_F(GpuBugs, B08_LogitsBelowMinusFiftyThousandAreLogits) {
  const AttentionSpec spec = plain_spec();
  on_every_path(spec, [&](const EngineOptions& options, const std::string& what) {
    for (const Request r : {Request{1, 64}, {1, 1}, {1, 700}, {40, 64}, {40, 700}}) {
      Step s = make_step({r}, spec);
      s.q.fill(1.0f);
      for (int32_t j = 0; j < r.kv_len; ++j) set_key(s, j, (j == 0 ? -95000.0f : -100000.0f) / 64.0f, float(j % 100 + 1));
      run(s, options);
      const float logit = 64.0f * bf16_to_float(float_to_bf16(-95000.0f / 64.0f));
      for (int64_t i = 0; i < s.o.count(); ++i) ASSERT_EQ(s.o.get(i), 1.0f) << what << ", " << r.q_len << " x " << r.kv_len;  // key 0 alone counts
      for (int64_t i = 0; i < s.lse.count(); ++i) ASSERT_NEAR(s.lse.get(i), logit, 1e-6 * 95000) << what << ", " << r.q_len << " x " << r.kv_len;
    }
  });
}

TEST_F(GpuBugs, B43_EqualScoresGiveTheLogOfTheCount) {
  const AttentionSpec spec = plain_spec();
  on_every_path(spec, [&](const EngineOptions& options, const std::string& what) {
    for (const Request r : {Request{1, 4}, {3, 4}, {40, 4}, {1, 2048}, {40, 2048}}) {
      Step s = make_step({r}, spec);
      s.q.fill(0.0f);
      run(s, options);
      for (int64_t i = 0; i < s.lse.count(); ++i) ASSERT_NEAR(s.lse.get(i), std::log(double(r.kv_len)), 4e-6) << what << ", " << r.q_len << " x " << r.kv_len;
    }
  });
}

TEST_F(GpuBugs, B85_TheSoftmaxIsNeitherFlatterNorSharperThanItShouldBe) {
  // Two keys with scores 0 and 2: weights 0.1192 and 0.8808; with 2 in the place of e, 0.2 and 0.8.
  const double heavy = 1.0 / (1.0 + std::exp(-2.0));
  const AttentionSpec spec = plain_spec();
  on_every_path(spec, [&](const EngineOptions& options, const std::string& what) {
    for (const int32_t q_len : {1, 2, 40}) {
      Step s = make_step({{q_len, 2}}, spec);
      s.q.fill(0.0f);
      for (int64_t i = 0; i < s.q.count(); i += spec.head_dim_qk) s.q.set(i, 1.0f);
      set_key(s, 0, 0.0f, 0.0f);
      set_key(s, 1, 2.0f, 1.0f);
      run(s, options);
      for (int64_t i = 0; i < s.o.count(); ++i) ASSERT_NEAR(s.o.get(i), heavy, 4e-3) << what << ", " << q_len;  // weights and O are bf16
      for (int64_t i = 0; i < s.lse.count(); ++i) ASSERT_NEAR(s.lse.get(i), std::log(1.0 + std::exp(2.0)), 4e-6) << what << ", " << q_len;
    }
  });
}

// Keys that the window leaves out are neither planned nor fetched: their page ids are no page's.
TEST_F(GpuBugs, B24_AWindowLimitsTheWork) {
  AttentionSpec spec = gpu_spec();
  spec.variant.range.left = 127;
  const int32_t kv_len = 4000;
  on_every_path(spec, [&](const EngineOptions& options, const std::string& what) {
    for (const int32_t q_len : {1, 3, 200}) {
      Step s = make_step({{q_len, kv_len}, {q_len, kv_len - 1}}, spec);
      Engine engine(spec, s.capacity(), options);
      GpuStep g(s);
      g.poison();
      const std::vector<int32_t> there = s.pages;
      std::vector<int32_t> ids = there;
      for (size_t r = 0; r < 2; ++r) {
        const int64_t first_seen = std::max(0, s.kv_len[r] - q_len - 127) / spec.page_size;
        std::fill_n(ids.begin() + s.list_indptr[r], first_seen, r == 0 ? -1 : 1 << 30);
      }
      const GpuBuffer ids_there = kvloom::test::put(ids);
      g.tensors.pages = IndexView(ids_there.as<int32_t>(), int64_t(ids.size()));
      std::copy(ids.begin(), ids.end(), s.pages.begin());
      const Plan plan = engine.plan(s.batch);
      int64_t keys = 0;
      for (const WorkItem& item : plan.view().items) keys += item.kv_end - item.kv_begin;
      // Every tile of rows sees its rows' keys and those of the window before the first: no request has more than 7 tiles a head.
      EXPECT_LE(keys, 2 * spec.num_kv_heads * (q_len + 7 * 128)) << what << ", " << q_len;
      engine.run(plan, g.tensors);
      g.download(s);
      std::copy(there.begin(), there.end(), s.pages.begin());  // REF looks up what the mask leaves out, too
      expect_gpu_right(s, what + ", " + std::to_string(q_len));
    }
  });
}

TEST_F(GpuBugs, B26_SlopesAreTheCallersWhateverTheLocalHeads) {
  // Heads 4..7 of 8 (and 5..9 of 10) on a rank of their own, with their slopes.
  for (const int32_t heads : {8, 10}) {
    AttentionSpec spec = gpu_spec();
    spec.num_qo_heads = spec.num_kv_heads = heads;
    spec.variant.alibi = true;
    AttentionSpec rank = spec;
    const int32_t local = heads / 2;
    rank.num_qo_heads = rank.num_kv_heads = local;
    on_every_path(spec, [&](const EngineOptions& options, const std::string& what) {
      for (const Request r : {Request{1, 300}, {40, 64}}) {
        Step all = make_step({r}, spec);
        gpu.set_spec(&spec);
        run(all, options);
        expect_gpu_right(all, what);

        Step half = make_step({r}, rank);
        for (const auto& [from, to] : {std::pair{&all.q, &half.q}, {&all.k, &half.k}, {&all.v, &half.v}}) {
          const size_t row = size_t(local) * 64 * sizeof(uint16_t);
          for (size_t i = 0; i < to->bytes.size() / row; ++i) std::copy_n(from->bytes.begin() + int64_t((2 * i + 1) * row), row, to->bytes.begin() + int64_t(i * row));
        }
        std::copy_n(all.slopes.begin() + local, local, half.slopes.begin());
        gpu.set_spec(&rank);
        run(half, options);
        expect_gpu_right(half, what + ", half of " + std::to_string(heads) + " heads");
      }
    });
  }
}

// Two engines in turn, and two plans of one with masks of different shape: none uses what the other was given.
TEST_F(GpuBugs, B28_AMaskOfAnEarlierPlanIsNotUsedLater) {
  AttentionSpec masked = gpu_spec(), causal = gpu_spec();
  masked.variant.custom_mask = true;
  masked.variant.range.causal = false;
  add_kernel_of(masked);
  add_kernel_of(causal);
  Step a = make_step({{4, 150}, {1, 70}}, masked, 1), b = make_step({{4, 150}, {1, 70}}, causal, 2), c = make_step({{20, 90}, {1, 33}}, masked, 3);
  Engine masks(masked, large(), cuda_options()), none(causal, large(), cuda_options());
  GpuStep ga(a), gb(b), gc(c);
  const Plan plan_a = masks.plan(a.batch), plan_b = none.plan(b.batch), plan_c = masks.plan(c.batch);
  for (int i = 0; i < 2; ++i) {
    for (const auto& [engine, plan, on_gpu, step] : {std::tuple{&masks, &plan_a, &ga, &a}, {&none, &plan_b, &gb, &b}, {&masks, &plan_c, &gc, &c}}) {
      on_gpu->poison();
      gpu.set_spec(&step->spec);
      engine->run(*plan, on_gpu->tensors);
      expect_device_right(*on_gpu, *step, std::to_string(i));
    }
  }
  gpu.set_spec(nullptr);
}

// What is data of a kernel comes from the spec of the engine that runs it: of one kernel, the second value is not the first, nor the other way round.
TEST_F(GpuBugs, B96_TheSecondValueOfAConstantIsNotTheFirst) {
  std::vector<AttentionSpec> specs(8, gpu_spec());
  specs[0].sm_scale = 0.125f, specs[1].sm_scale = 0.375f;
  specs[2].variant.range.left = 16, specs[3].variant.range.left = 64;
  specs[4].variant.soft_cap = 30.0f, specs[5].variant.soft_cap = 2.0f;
  specs[6].variant.range.causal = true, specs[7].variant.range.causal = false;
  for (const size_t i : {0, 1, 0, 2, 3, 2, 4, 5, 4, 6, 7, 6}) {
    add_kernel_of(specs[i]);
    gpu.set_spec(&specs[i]);
    Step s = make_step({{1, 300}, {40, 150}}, specs[i]);
    run(s, cuda_options());
    expect_gpu_right(s, std::to_string(i));
  }
  gpu.set_spec(nullptr);
}

// Where nothing may depend on the company, nothing depends on what the host declared it to be at most.
TEST_F(GpuBugs, B72_BitsDoNotDependOnTheDeclaredMost) {
  const AttentionSpec spec = gpu_spec();
  add_kernel_of(spec, true);
  gpu.set_spec(&spec);
  EngineOptions options = cuda_options();
  options.policy = Policy::fixed_split;
  std::vector<std::vector<char>> bits;
  for (const int64_t most : {1024, 131072}) {
    Step s = make_step({{1, 1000}}, spec);
    run(s, options, {4, 16, most, 0, 0});
    expect_gpu_right(s);
    bits.push_back(s.o.bytes);
    bits.back().insert(bits.back().end(), s.lse.bytes.begin(), s.lse.bytes.end());
  }
  gpu.set_spec(nullptr);
  EXPECT_TRUE(bits[0] == bits[1]);
}

// indptr [0, 3, 6, 9]: three tokens each, which is work for kernels of few rows; 9 would not be.
TEST_F(GpuBugs, B75_TheLongestQueryIsADifferenceAndNotAnEnd) {
  const AttentionSpec spec = gpu_spec();
  on_every_path(spec, [&](const EngineOptions& options, const std::string& what) {
    Step s = make_step({{3, 50}, {3, 60}, {3, 70}}, spec);
    Engine engine(spec, s.capacity(), options);
    GpuStep g(s);
    g.poison();
    const Plan plan = engine.plan(s.batch);
    for (const WorkItem& item : plan.view().items) {
      EXPECT_EQ(item.kernel_class, 0) << what;
      EXPECT_LE(item.row_count, 3 * spec.num_qo_heads / spec.num_kv_heads) << what;
    }
    engine.run(plan, g.tensors);
    EXPECT_TRUE(!gpu.is_fake() || gpu.last_entry() == "attend_memory" || gpu.last_entry() == "attend_small") << what << ": " << gpu.last_entry();
    expect_device_right(g, s, what);
  });
}

// What fp8 keys and values cost is what they are rounded by; probabilities in fp8 would cost e4m3, which ends at 448, more than e5m2.
TEST_F(GpuBugs, B83_E4m3IsMoreAccurateThanE5m2) {
  for (const float scale : {0.02f, 0.1f}) {  // uniform and peaked scores
    for (const Request r : {Request{8, 256}, {8, 4096}, {150, 700}}) {
      std::vector<std::vector<float>> outputs[3];  // of each path
      for (const DType kv : {DType::bf16, DType::e4m3, DType::e5m2}) {
        AttentionSpec spec = gpu_spec();
        spec.head_dim_qk = spec.head_dim_vo = 128;
        spec.variant.range.causal = false;
        spec.sm_scale = scale;
        spec.kv_dtype = kv;
        on_every_path(spec, [&](const EngineOptions& options, const std::string&) {
          Step s = make_step({r}, spec);
          run(s, options);
          std::vector<float> o(static_cast<size_t>(s.o.count()));
          for (size_t i = 0; i < o.size(); ++i) o[i] = s.o.get(int64_t(i));
          outputs[kv == DType::bf16 ? 0 : kv == DType::e4m3 ? 1 : 2].push_back(o);
        });
      }
      for (size_t path = 0; path < outputs[0].size(); ++path) {
        double error[2] = {};
        for (size_t i = 0; i < outputs[0][path].size(); ++i) {
          for (const int t : {0, 1}) error[t] += std::pow(double(outputs[t + 1][path][i]) - outputs[0][path][i], 2);
        }
        EXPECT_GT(error[0], 0.0) << "path " << path;
        EXPECT_LT(std::sqrt(error[0]), 0.65 * std::sqrt(error[1])) << "path " << path << ", scale " << scale << ", " << r.q_len << " x " << r.kv_len;
      }
    }
  }
}

// What a launch would read past, it never sees: rows, types, lengths and scales that can't be, and a mask that is missing. (The size of a mask stands in the
// device's memory: there nobody looks.)
TEST_F(GpuBugs, B32_B63_B64_B65_B82_WhatCanNotBeIsRefused) {
  AttentionSpec spec = gpu_spec(), masked = gpu_spec(), fp8 = gpu_spec();
  masked.variant.custom_mask = true;
  fp8.kv_dtype = DType::e4m3;
  for (const AttentionSpec& s : {spec, masked, fp8}) add_kernel_of(s);
  const auto refusal = [&](const AttentionSpec& of, auto change) {
    Step s = make_step({{4, 40}}, of);
    Engine engine(of, s.capacity(), cuda_options());
    GpuStep g(s);
    g.poison();
    const Plan plan = engine.plan(s.batch);
    change(g.tensors);
    std::string text;
    try {
      engine.run(plan, g.tensors);
    } catch (const Error& e) {
      text = e.what();
    }
    g.download(s);
    for (int64_t i = 0; i < s.o.count(); ++i) EXPECT_TRUE(std::isnan(s.o.get(i))) << "something ran: " << text;
    return text;
  };
  for (const int64_t rows : {3, 5}) {
    const std::string q = refusal(spec, [&](RunTensors& t) { t.q.shape[0] = rows; }), o = refusal(spec, [&](RunTensors& t) { t.o.shape[0] = rows; });
    EXPECT_TRUE(has(q, "run: q: ") && has(q, std::to_string(rows)) && has(q, "4")) << q;
    EXPECT_TRUE(has(o, "run: o: ") && has(o, std::to_string(rows)) && has(o, "4")) << o;
  }
  const std::string cache = refusal(fp8, [](RunTensors& t) { t.k.dtype = t.v.dtype = DType::bf16; }), query = refusal(spec, [](RunTensors& t) { t.q.dtype = DType::f16; });
  EXPECT_TRUE(has(cache, "run: k: ") && has(cache, "bf16") && has(cache, "e4m3")) << cache;
  EXPECT_TRUE(has(query, "run: q: ") && has(query, "f16") && has(query, "bf16")) << query;
  const std::string scale = refusal(spec, [](RunTensors& t) { t.scale.k = 3.0f; });
  EXPECT_TRUE(has(scale, "run: scale.k: got 3 with bf16, wanted 1")) << scale;
  EXPECT_TRUE(has(refusal(masked, [](RunTensors& t) { t.mask = nullptr; }), "run: mask: got none"));
  EXPECT_TRUE(has(refusal(masked, [](RunTensors& t) { t.mask_indptr = nullptr; }), "run: mask_indptr: got none"));

  Step s = make_step({{1, 40}, {1, 50}}, spec);
  Engine engine(spec, s.capacity(), cuda_options());
  const int32_t negative[] = {40, -1};
  Batch batch = s.batch;
  batch.kv_len = IndexView(negative, 2);
  EXPECT_TRUE(has(error_of([&] { engine.plan(batch); }, ErrorCode::invalid_argument), "plan: kv_len: request 1: got -1"));
}

}  // namespace
}  // namespace kvloom::test
