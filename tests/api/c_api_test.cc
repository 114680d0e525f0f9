// The C interface: the smoke program compiled as C, its layout, and garbage thrown at every descriptor.
#include "kvloom/api/kvloom.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

extern "C" int kvloom_c_smoke(void);

namespace kvloom::test {
namespace {

TEST(CApi, SmokeCompiledAsC) { EXPECT_EQ(kvloom_c_smoke(), 0) << "line of c_api_smoke.c; last error: " << kvloom_last_error(); }

TEST(CApi, LastErrorIsTheThreadsOwn) {
  EXPECT_NE(kvloom_engine_create(nullptr, nullptr, nullptr, nullptr, 0, nullptr), KVLOOM_OK);
  const std::string mine = kvloom_last_error();
  EXPECT_NE(mine, "");
  std::thread([] {
    EXPECT_STREQ(kvloom_last_error(), "");
    EXPECT_NE(kvloom_plan_graph_key(nullptr, nullptr), KVLOOM_OK);
    EXPECT_NE(std::string(kvloom_last_error()).find("kvloom_plan_graph_key: plan"), std::string::npos);
  }).join();
  EXPECT_EQ(mine, kvloom_last_error());
}

/// A call whose every field can be spoiled. The tensors' memory is large enough for any shape and stride that the values below can make
/// valid, so whatever is accepted must also be harmless; the sanitizers say if not.
struct Call {
  static constexpr int64_t kElements = 1 << 16;
  std::vector<float> memory[5];
  int64_t shape[5][5], strides[5][5];
  kvloom_tensor tensor[5];
  bool has_strides[5];
  std::vector<int32_t> qo_indptr{0, 2, 3}, kv_len{9, 5}, list_indptr{0, 3, 5}, pages{6, 0, 3, 7, 1}, q_pos0{7, 4};
  kvloom_spec spec;
  kvloom_capacity capacity;
  kvloom_options options;
  kvloom_batch batch;
  kvloom_run_tensors run;

  Call() {
    kvloom_spec_init(&spec, sizeof spec);
    spec.num_qo_heads = 4;
    spec.num_kv_heads = 2;
    spec.head_dim_qk = spec.head_dim_vo = 16;
    spec.page_size = 4;
    spec.causal = 1;
    kvloom_capacity_init(&capacity, sizeof capacity);
    capacity.max_requests = 2;
    capacity.max_query_tokens = 3;
    capacity.max_kv_tokens = 32;
    kvloom_options_init(&options, sizeof options);
    options.threads = 1;
    options.num_ctas = 3;
    kvloom_batch_init(&batch, sizeof batch);
    batch.num_requests = 2;
    batch.qo_indptr = {qo_indptr.data(), 3, 32};
    batch.kv_len = {kv_len.data(), 2, 32};
    batch.list_indptr = {list_indptr.data(), 3, 32};
    batch.pages = {pages.data(), 5, 32};
    const std::vector<int64_t> shapes[5] = {{3, 4, 16}, {8, 4, 2, 16}, {8, 4, 2, 16}, {3, 4, 16}, {3, 4}};
    for (int i = 0; i < 5; ++i) {
      memory[i].assign(kElements, 0.25f);
      std::copy(shapes[i].begin(), shapes[i].end(), shape[i]);
      int64_t stride = 1;
      for (size_t d = shapes[i].size(); d-- > 0;) {
        strides[i][d] = stride;
        stride *= shapes[i][d];
      }
      kvloom_tensor_init(&tensor[i], memory[i].data(), KVLOOM_F32, int32_t(shapes[i].size()), shape[i]);
      tensor[i].strides = strides[i];
    }
    kvloom_run_tensors_init(&run, sizeof run);
    run.q = &tensor[0], run.k = &tensor[1], run.v = &tensor[2], run.o = &tensor[3], run.lse = &tensor[4];
  }

  kvloom_status go() { return kvloom_attention(&spec, &batch, &run, &options); }
};

/// Values that break things.
template <class T>
T odd_value(std::mt19937& random) {
  const int64_t values[] = {0,
                            1,
                            2,
                            3,
                            4,
                            5,
                            7,
                            8,
                            16,
                            17,
                            31,
                            64,
                            100,
                            255,
                            256,
                            65535,
                            1 << 20,
                            INT32_MAX,
                            INT32_MIN,
                            INT64_MAX,
                            INT64_MIN,
                            -1,
                            -2,
                            -16,
                            int64_t(1) << 40,
                            int64_t(1) << 61};
  return static_cast<T>(values[random() % std::size(values)]);
}

float odd_float(std::mt19937& random) {
  const float values[] = {0.0f, 1.0f, -1.0f, 1e30f, -1e30f, 1e-30f, __builtin_inff(), -__builtin_inff(), __builtin_nanf(""), 30.0f};
  return values[random() % std::size(values)];
}

/// Spoils one field of a tensor. Strides only get values whose reach stays within the memory, or that are refused.
void spoil_tensor(Call& c, std::mt19937& random) {
  const size_t i = random() % 5;
  kvloom_tensor& t = c.tensor[i];
  switch (random() % 9) {
    case 0:
      t.data = nullptr;
      break;
    case 1:
      t.device_type = odd_value<int32_t>(random);
      break;
    case 2:
      t.ndim = odd_value<int32_t>(random);
      break;
    case 3:
      t.dtype_code = odd_value<uint8_t>(random);
      break;
    case 4:
      t.dtype_bits = odd_value<uint8_t>(random);
      break;
    case 5:
      t.dtype_lanes = odd_value<uint16_t>(random);
      break;
    case 6:
      t.shape = nullptr;
      break;
    case 7:
      c.shape[i][random() % 4] = odd_value<int64_t>(random);
      break;
    case 8: {
      const int64_t small[] = {0, 1, 2, 3, 15, 16, 17, 32, 64, 100, 128, 512, 1000, INT64_MAX, INT64_MIN, int64_t(1) << 62};
      c.strides[i][random() % 4] = small[random() % std::size(small)];
      break;
    }
  }
}

void spoil_batch(Call& c, std::mt19937& random) {
  kvloom_indices* const arrays[] = {&c.batch.qo_indptr, &c.batch.kv_len, &c.batch.list_indptr, &c.batch.pages, &c.run.pages};
  std::vector<int32_t>* const contents[] = {&c.qo_indptr, &c.kv_len, &c.list_indptr, &c.pages};
  switch (random() % 9) {
    case 0:
      arrays[random() % 5]->bits = odd_value<int32_t>(random) == 64 ? 7 : odd_value<int32_t>(random) % 33;
      break;
    case 1:
      arrays[random() % 5]->data = nullptr;
      break;
    case 2:
      arrays[random() % 4]->size = int64_t(random() % 3);
      break;  // never more than is there: that can't be seen
    case 3: {
      std::vector<int32_t>& v = *contents[random() % 4];
      v[random() % v.size()] = odd_value<int32_t>(random);
      break;
    }
    case 4:
      c.batch.num_requests = odd_value<int32_t>(random);
      break;
    case 5:
      c.batch.table_stride = odd_value<int64_t>(random);
      break;
    case 6:
      c.batch.kv_position = odd_value<int32_t>(random);
      break;
    case 7:
      c.batch.lists_per_kv_head = 1;
      break;
    case 8:
      c.batch.num_groups = odd_value<int64_t>(random);
      break;
  }
}

void spoil_spec(Call& c, std::mt19937& random) {
  int32_t* const fields[] = {&c.spec.num_qo_heads, &c.spec.num_kv_heads,   &c.spec.head_dim_qk, &c.spec.head_dim_vo, &c.spec.q_dtype,
                             &c.spec.kv_dtype,     &c.spec.o_dtype,        &c.spec.storage,     &c.spec.page_size,   &c.spec.window_left,
                             &c.spec.window_right, &c.spec.alibi,          &c.spec.custom_mask, &c.spec.sink,        &c.spec.reduction,
                             &c.run.layout,        &c.run.bare_state,      &c.options.backend,  &c.options.num_ctas, &c.options.policy,
                             &c.options.levels,    &c.options.split_tokens};
  uint32_t* const sizes[] = {&c.spec.struct_size, &c.batch.struct_size, &c.run.struct_size, &c.options.struct_size};
  float* const floats[] = {&c.spec.sm_scale, &c.spec.soft_cap, &c.spec.sigmoid_bias};
  switch (random() % 4) {
    case 0:
      *floats[random() % 3] = odd_float(random);
      break;
    case 1: {  // sizes that the caller's memory has
      uint32_t& size = *sizes[random() % 4];
      size = random() % 2 ? uint32_t(random() % size) : 1u << 31;
      break;
    }
    default: {
      int32_t& field = *fields[random() % std::size(fields)];
      field = odd_value<int32_t>(random);
      if (&field == &c.options.num_ctas && field > 4096) field = 4096;  // valid, but slow
      break;
    }
  }
}

TEST(CApi, GarbageIsRefusedOrHarmless) {
  std::mt19937 random(1);
  int refused = 0, accepted = 0;
  for (int trial = 0; trial < 2500; ++trial) {
    Call c;
    for (uint32_t faults = 1 + random() % 2; faults > 0; --faults) {
      switch (random() % 3) {
        case 0:
          spoil_tensor(c, random);
          break;
        case 1:
          spoil_batch(c, random);
          break;
        case 2:
          spoil_spec(c, random);
          break;
      }
    }
    const kvloom_status status = c.go();
    ASSERT_NE(status, KVLOOM_INTERNAL) << kvloom_last_error();
    if (status == KVLOOM_OK) {
      ++accepted;
    } else {
      ++refused;
      ASSERT_NE(std::strstr(kvloom_last_error(), ": "), nullptr) << kvloom_last_error();
    }
  }
  EXPECT_GT(refused, 1200);
  EXPECT_GT(accepted, 150);  // some garbage is fine: a window of 7, a policy of 2
}

}  // namespace
}  // namespace kvloom::test
