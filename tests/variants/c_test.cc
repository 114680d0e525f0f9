// Users' variants through the C interface.
#include "kvloom/api/kvloom.h"
#include "tests/variants/variant_texts.h"

namespace kvloom::test {
namespace {

constexpr const char* kText =
    "struct Gain {\n  struct Params {\n    kvloom::Array<float, kvloom::dim::qo_heads> gain;\n    float bias;\n    int64_t far;\n"
    "    KVLOOM_PARAMS(KVLOOM_PARAM(gain, 0, 1), KVLOOM_PARAM(bias, 0, 1), KVLOOM_PARAM(far, 0, 9))\n  };\n"
    "  static float logit(float score, const kvloom::Coord& c, const Params& p) {\n"
    "    return score * p.gain(c.q_head) + (c.kv_pos > p.far ? p.bias : 0.0f);\n  }\n};\nKVLOOM_VARIANT(Gain)\n";

/// Two q heads over one KV head of 16 dims; one request with 1 query and 5 keys, ragged.
struct Call {
  std::vector<float> q, k, v, o, lse, gain{2.0f, 9.0f, 0.5f};
  int64_t q_shape[3] = {1, 2, 16}, kv_shape[3] = {5, 1, 16}, lse_shape[2] = {1, 2}, gain_shape[1] = {2}, gain_stride[1] = {2};
  kvloom_tensor tensor[5], gain_tensor;
  int32_t qo_indptr[2] = {0, 1}, kv_len[1] = {5}, list_indptr[2] = {0, 5};
  kvloom_spec spec;
  kvloom_capacity capacity;
  kvloom_batch batch;
  kvloom_run_tensors run;
  kvloom_param params[3];

  Call() : q(32), k(80), v(80), o(32), lse(2) {
    for (size_t i = 0; i < q.size(); ++i) q[i] = std::sin(float(i));
    for (size_t i = 0; i < k.size(); ++i) k[i] = std::cos(float(3 * i)), v[i] = std::sin(float(7 * i + 1));
    kvloom_spec_init(&spec, sizeof spec);
    spec.num_qo_heads = 2;
    spec.num_kv_heads = 1;
    spec.head_dim_qk = spec.head_dim_vo = 16;
    spec.storage = KVLOOM_RAGGED;
    spec.variant_text = kText;
    spec.variant_file = "gain.h";
    kvloom_capacity_init(&capacity, sizeof capacity);
    capacity.max_requests = 1;
    capacity.max_query_tokens = 1;
    capacity.max_kv_tokens = 8;
    kvloom_batch_init(&batch, sizeof batch);
    batch.num_requests = 1;
    batch.qo_indptr = {qo_indptr, 2, 32};
    batch.kv_len = {kv_len, 1, 32};
    batch.list_indptr = {list_indptr, 2, 32};
    float* const data[] = {q.data(), k.data(), v.data(), o.data(), lse.data()};
    const int64_t* const shapes[] = {q_shape, kv_shape, kv_shape, q_shape, lse_shape};
    for (int i = 0; i < 5; ++i) kvloom_tensor_init(&tensor[i], data[i], KVLOOM_F32, i == 4 ? 2 : 3, shapes[i]);
    kvloom_tensor_init(&gain_tensor, gain.data(), KVLOOM_F32, 1, gain_shape);
    gain_tensor.strides = gain_stride;
    kvloom_run_tensors_init(&run, sizeof run);
    run.q = &tensor[0], run.k = &tensor[1], run.v = &tensor[2], run.o = &tensor[3], run.lse = &tensor[4];
    params[0] = {"bias", nullptr, 1.5};
    params[1] = {"gain", &gain_tensor, 0.0};
    params[2] = {"far", nullptr, 2.0};
    run.params = params;
    run.num_params = 3;
  }

  /// The status of making, planning and running it.
  kvloom_status attend() { return kvloom_attention(&spec, &batch, &run, nullptr); }
};

TEST(UserVariantInC, GivesTheRightNumbers) {
  Call c;
  kvloom_engine* engine = nullptr;
  kvloom_plan* plan = nullptr;
  ASSERT_EQ(kvloom_engine_create(&c.spec, &c.capacity, nullptr, nullptr, 0, &engine), KVLOOM_OK) << kvloom_last_error();
  EXPECT_TRUE(has(kvloom_engine_kernel_key(engine), ".user-Gain"));
  ASSERT_EQ(kvloom_plan_create(engine, &c.batch, &plan), KVLOOM_OK) << kvloom_last_error();
  ASSERT_EQ(kvloom_run(engine, plan, &c.run, nullptr), KVLOOM_OK) << kvloom_last_error();
  kvloom_plan_destroy(plan);
  kvloom_engine_destroy(engine);
  const double gains[2] = {2.0, 0.5};  // every other element
  for (int h = 0; h < 2; ++h) {
    double logit[5], sum = 0.0;
    for (int j = 0; j < 5; ++j) {
      double dot = 0.0;
      for (int d = 0; d < 16; ++d) dot += double(c.q[size_t(h * 16 + d)]) * c.k[size_t(j * 16 + d)];
      logit[j] = dot * 0.25 * gains[h] + (j > 2 ? 1.5 : 0.0);
      sum += std::exp(logit[j]);
    }
    EXPECT_NEAR(c.lse[size_t(h)], std::log(sum), 1e-6);
    for (int d = 0; d < 16; ++d) {
      double o = 0.0;
      for (int j = 0; j < 5; ++j) o += std::exp(logit[j]) / sum * c.v[size_t(j * 16 + d)];
      EXPECT_NEAR(c.o[size_t(h * 16 + d)], o, 1e-6);
    }
  }
}

TEST(UserVariantInC, OneCallAndAFileServe) {
  Call c;
  EXPECT_EQ(c.attend(), KVLOOM_OK) << kvloom_last_error();
  c.spec.variant_text = nullptr;
  const std::string file = example("alibi_slopes");
  c.spec.variant_file = file.c_str();
  c.params[1].name = "slopes";
  c.run.params = c.params + 1;
  c.run.num_params = 1;
  EXPECT_EQ(c.attend(), KVLOOM_OK) << kvloom_last_error();
}

TEST(UserVariantInC, FaultsAreNamed) {
  const auto fault = [](auto&& change, kvloom_status status, const char* part) {
    Call c;
    change(c);
    EXPECT_EQ(c.attend(), status) << part;
    EXPECT_TRUE(has(kvloom_last_error(), part)) << kvloom_last_error();
  };
  fault([](Call& c) { c.spec.variant_text = "struct Gain { int x = y; };\nKVLOOM_VARIANT(Gain)\n"; }, KVLOOM_INVALID_ARGUMENT, "gain.h:1:");
  fault([](Call& c) { c.spec.variant_text = nullptr, c.spec.variant_file = "/nowhere/gain.h"; }, KVLOOM_IO, "/nowhere/gain.h");
  fault([](Call& c) { c.run.num_params = 2; }, KVLOOM_INVALID_ARGUMENT, "far: got none");
  fault([](Call& c) { c.run.params = nullptr; }, KVLOOM_INVALID_ARGUMENT, "params: got 3 of them at a null pointer");
  fault([](Call& c) { c.params[0].name = "base"; }, KVLOOM_INVALID_ARGUMENT, "base: got a parameter that Gain does not have");
  fault([](Call& c) { c.params[0].name = nullptr; }, KVLOOM_INVALID_ARGUMENT, "name");
  fault([](Call& c) { c.gain_tensor.dtype_bits = 64; }, KVLOOM_INVALID_ARGUMENT, "wanted float32, int32, int64 or uint8");
  fault([](Call& c) { c.gain_tensor.ndim = 4; }, KVLOOM_INVALID_ARGUMENT, "ndim: got 4, wanted 1 .. 3");
  fault([](Call& c) { c.gain_shape[0] = 3; }, KVLOOM_INVALID_ARGUMENT, "shape[0]: got 3, wanted 2");
}

// A program that was built before there were users' variants.
TEST(UserVariantInC, OlderStructsAreStillRead) {
  Call c;
  c.spec.struct_size = offsetof(kvloom_spec, variant_text);
  c.run.struct_size = offsetof(kvloom_run_tensors, params);
  EXPECT_EQ(c.attend(), KVLOOM_OK) << kvloom_last_error();
}

}  // namespace
}  // namespace kvloom::test
