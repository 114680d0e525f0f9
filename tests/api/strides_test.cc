// Strides and list begins that no check may trust: those of one token alone, and numbers near the ends of 64 bits.
#include "kvloom/api/engine.h"
#include "kvloom/api/tensor_check.h"
#include "tests/support/errors.h"
#include "tests/support/step.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace kvloom::test {
namespace {

Tensor tensor_of(std::vector<int64_t> shape, std::vector<int64_t> stride) {
  Tensor t;
  t.dtype = DType::bf16;
  t.ndim = int32_t(shape.size());
  for (size_t d = 0; d < shape.size(); ++d) t.shape[d] = shape[d], t.stride[d] = stride[d];
  return t;
}

TEST(Strides, OfOneTokenHoldForMore) {
  constexpr int64_t kAlign = 16;
  const auto stride = [](std::vector<int64_t> shape, std::vector<int64_t> given, int32_t d) { return api::token_stride_of(tensor_of(shape, given), d, 1 - d, kAlign); };
  EXPECT_EQ(stride({3, 8, 64}, {900, 64, 1}, 0), 900) << "more than one token: what is given";
  EXPECT_EQ(stride({1, 8, 64}, {1536, 64, 1}, 0), 1536) << "of a fused matrix";
  EXPECT_EQ(stride({1, 8, 64}, {512, 64, 1}, 0), 512);
  for (const int64_t nothing : {int64_t(0), int64_t(1), int64_t(-512), int64_t(511), int64_t(519), INT64_MAX, INT64_MIN}) EXPECT_EQ(stride({1, 8, 64}, {nothing, 64, 1}, 0), 512) << nothing;
  EXPECT_EQ(stride({1, 8, 64}, {64, 6400, 1}, 0), 64) << "tokens within heads, seen from outside";
  EXPECT_EQ(stride({1, 8, 64}, {3072, 192, 1}, 0), 3072) << "heads that lie apart";
  EXPECT_EQ(stride({1, 8, 64}, {1, 6400, 1}, 0), 0) << "nothing says where another token is: none is written out of bounds";
  EXPECT_EQ(stride({1, 8, 64}, {0, 0, 1}, 0), 0) << "one head for all";
  EXPECT_EQ(stride({1, 8, 64}, {64, 0, 1}, 0), 64) << "one head for all";
  EXPECT_EQ(stride({1, 1, 64}, {0, 0, 1}, 0), 64);
  EXPECT_EQ(stride({8, 1, 64}, {6400, 0, 1}, 1), 64) << "tokens within heads";
  EXPECT_EQ(stride({8, 1, 64}, {6400, 128, 1}, 1), 128) << "tokens within heads, apart";
  const auto of_lse = [](std::vector<int64_t> given) { return api::token_stride_of(tensor_of({1, 8}, given), 0, 1, 1); };
  EXPECT_EQ(of_lse({8, 1}), 8);
  EXPECT_EQ(of_lse({1, 1}), 8);
  EXPECT_EQ(of_lse({1, 100}), 1) << "LSE by heads, as flash-attn has it";
  EXPECT_EQ(of_lse({9, 1}), 9);
}

// Ragged lists lie anywhere in K and V, which nobody knows the size of when a step is planned; but offsets must stay within 64 bits.
TEST(Strides, RaggedListsThatBeginNowhere) {
  Step s;
  s.spec = small_spec();
  s.spec.storage = Storage::ragged;
  s.spec.page_size = 1;
  s.requests = {{1, 10}};
  s.make();
  Engine engine(s.spec, {4, 16, 1000, 0, 0});
  for (const int64_t begin : {INT64_MAX, INT64_MAX - 3, INT64_MAX - 9, INT64_MAX / 2 - 9}) {
    const std::vector<int64_t> begins{begin};
    s.batch.list_indptr = IndexView(begins.data(), 1);
    EXPECT_TRUE(has(error_of([&] { engine.plan(s.batch); }, ErrorCode::invalid_argument), "plan: list_indptr: request 0: got " + std::to_string(begin) + ", wanted at most ")) << begin;
  }
  const std::vector<int64_t> begins{INT64_MAX / 2 - 10};
  s.batch.list_indptr = IndexView(begins.data(), 1);
  const Plan plan = engine.plan(s.batch);
  EXPECT_TRUE(has(error_of([&] { engine.run(plan, s.tensors); }, ErrorCode::invalid_argument), " tokens, wanted at least "));
}

}  // namespace
}  // namespace kvloom::test
