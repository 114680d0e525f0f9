// Garbage thrown at the C operations: refused, or harmless as the sanitizers see it.
#include "kvloom/api/kvloom.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace kvloom::test {
namespace {

/// Tensors over memory that any accepted shape and stride stays within.
struct Tensors {
  static constexpr size_t kFloats = 1 << 14;
  std::vector<std::vector<float>> memory;
  std::vector<std::vector<int64_t>> shape, strides;
  std::vector<kvloom_tensor> t;

  explicit Tensors(const std::vector<std::vector<int64_t>>& shapes) {
    for (const std::vector<int64_t>& s : shapes) {
      memory.emplace_back(kFloats, 0.5f);
      shape.push_back(s);
      std::vector<int64_t> stride(4, 1);
      for (size_t d = s.size(); d-- > 1;) stride[d - 1] = stride[d] * s[d];
      strides.push_back(stride);
      shape.back().resize(4, 1);
    }
    for (size_t i = 0; i < shapes.size(); ++i) {
      kvloom_tensor one;
      kvloom_tensor_init(&one, memory[i].data(), KVLOOM_F32, int32_t(shapes[i].size()), shape[i].data());
      one.strides = strides[i].data();
      t.push_back(one);
    }
  }

  void spoil(std::mt19937& random) {
    const int64_t lengths[] = {0, 1, 2, 3, 4, 5, 16, 17, -1, INT64_MIN, INT64_MAX, int64_t(1) << 33},
                  steps[] = {0, 1, 2, 7, 16, 32, 64, 100, 128, INT64_MAX, INT64_MIN};
    const size_t i = random() % t.size();
    switch (random() % 7) {
      case 0:
        shape[i][random() % 4] = lengths[random() % std::size(lengths)];
        break;
      case 1:
        strides[i][random() % 4] = steps[random() % std::size(steps)];
        break;
      case 2:
        t[i].ndim = int32_t(random() % 7) - 1;
        break;
      case 3:
        t[i].data = nullptr;
        break;
      case 4:
        kvloom_tensor_init(&t[i], t[i].data, int32_t(random() % 7) - 1, t[i].ndim, shape[i].data());
        break;
      case 5:
        t[i].data = t[random() % t.size()].data;
        break;
      case 6:
        t[i].device_type = int32_t(random() % 4);
        break;
    }
  }
};

struct Count {
  int refused = 0, accepted = 0;
  void add(kvloom_status status) {
    ASSERT_NE(status, KVLOOM_INTERNAL) << kvloom_last_error();
    ++(status == KVLOOM_OK ? accepted : refused);
    if (status == KVLOOM_OK) return;
    ASSERT_NE(std::strstr(kvloom_last_error(), ": "), nullptr) << kvloom_last_error();
  }
};

TEST(CApi, GarbageMerges) {
  std::mt19937 random(2);
  Count count;
  for (int trial = 0; trial < 3000; ++trial) {
    Tensors x({{4, 2, 16}, {4, 2}, {4, 2, 16}, {4, 2}, {4, 2, 16}, {4, 2}, {4, 3, 2, 16}, {4, 3, 2}, {9, 2, 16}, {9, 2}});
    std::vector<int32_t> indptr{0, 3, 3, 7, 9};
    kvloom_indices view{indptr.data(), 5, 32};
    for (uint32_t n = 1 + random() % 2; n > 0; --n) x.spoil(random);
    if (random() % 4 == 0) indptr[random() % 5] = int32_t(random());
    if (random() % 8 == 0) view.bits = int32_t(random() % 40), view.size = int64_t(random() % 6);
    count.add(kvloom_merge_states(&x.t[0], &x.t[1], &x.t[2], &x.t[3], &x.t[4], random() % 2 ? &x.t[5] : nullptr, nullptr));
    count.add(kvloom_merge_states_n(&x.t[6], &x.t[7], &x.t[4], &x.t[5], nullptr));
    count.add(kvloom_merge_states_ragged(&x.t[8], &x.t[9], view, &x.t[4], &x.t[5], nullptr));
  }
  EXPECT_GT(count.refused, 1500);
  EXPECT_GT(count.accepted, 1500);
}

TEST(CApi, GarbageAppendsAndRotations) {
  std::mt19937 random(3);
  Count count;
  for (int trial = 0; trial < 5000; ++trial) {
    Tensors x({{3, 2, 16}, {3, 2, 16}, {8, 4, 2, 16}, {8, 4, 2, 16}});
    std::vector<int32_t> request{0, 1, -1}, pos{9, 3, 0}, indptr{0, 3, 5}, pages{6, 0, 3, 7, 1};
    kvloom_append_batch batch;
    kvloom_append_batch_init(&batch, sizeof batch);
    batch.num_tokens = 3, batch.num_requests = 2;
    batch.request = request.data(), batch.pos = pos.data();
    batch.list_indptr = {indptr.data(), 3, 32}, batch.pages = {pages.data(), 5, 32};
    kvloom_rope rope;
    kvloom_rope_init(&rope, sizeof rope);
    rope.mode = int32_t(random() % 3);
    std::vector<int32_t>* const arrays[] = {&request, &pos, &indptr, &pages};
    const int32_t values[] = {-1, -2, 0, 1, 2, 4, 8, 100, INT32_MAX, INT32_MIN};
    int32_t page_size = 4, layout = KVLOOM_NHD;
    for (uint32_t n = 1 + random() % 2; n > 0; --n) {
      switch (random() % 6) {
        case 0:
          x.spoil(random);
          break;
        case 1: {
          std::vector<int32_t>& v = *arrays[random() % 4];
          v[random() % v.size()] = values[random() % std::size(values)];
          break;
        }
        case 2:
          page_size = values[random() % std::size(values)];
          break;
        case 3:
          layout = values[random() % std::size(values)];
          break;
        case 4:
          batch.num_requests = values[random() % std::size(values)], batch.table_stride = values[random() % std::size(values)];
          break;
        case 5:
          rope.rotary_dim = values[random() % std::size(values)], rope.theta = float(values[random() % std::size(values)]);
          break;
      }
    }
    if (batch.table_stride > 0 && random() % 2) batch.list_indptr = {nullptr, 0, 32};
    count.add(kvloom_append_kv(&x.t[0], &x.t[1], &batch, &x.t[2], &x.t[3], layout, page_size, &rope, nullptr, nullptr));
    const std::vector<int32_t> positions(64, 7);  // a length that the library can't know: only calls that it suffices for
    if (x.shape[0][0] <= 64) count.add(kvloom_apply_rope(&x.t[0], positions.data(), &rope, nullptr));
  }
  EXPECT_GT(count.refused, 2500);
  EXPECT_GT(count.accepted, 1000);
}

}  // namespace
}  // namespace kvloom::test
