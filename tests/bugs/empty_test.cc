// EMPTY: requests without keys, without queries, batches without requests.
#include "tests/bugs/bug_case.h"

#include <cmath>

namespace kvloom::bugs {
namespace {

constexpr float kInf = __builtin_inff();

TEST(Empty, B01_AnEmptyRequestHarmsNobody) {
  expect_right("B01");
  // Request 1 beside the empty one has the bits that it has alone.
  const Case both = bug_case("B01.decode");
  CaseData data(both);
  const EngineOptions options = with_policy(Policy::fixed_split);
  const Output o = run_once(data, options);
  const size_t row = size_t(both.spec.num_qo_heads * both.spec.head_dim_vo), heads = size_t(both.spec.num_qo_heads);
  for (size_t i = 0; i < row; ++i) ASSERT_EQ(o.o[i], 0.0f);
  for (size_t h = 0; h < heads; ++h) ASSERT_EQ(o.lse[h], -kInf);
  // Alone: the same pages, seen by the second request only.
  const int32_t qo_indptr[] = {0, 1};
  Batch alone = data.batch();
  alone.num_requests = 1;
  alone.qo_indptr = IndexView(qo_indptr, 2);
  const int32_t kv_len[] = {17};
  alone.kv_len = IndexView(kv_len, 1);
  const int64_t list_indptr[] = {data.batch().list_indptr[1]};
  alone.list_indptr = IndexView(list_indptr, 1);
  RunTensors tensors = data.tensors();
  tensors.q.shape[0] = tensors.o.shape[0] = tensors.lse.shape[0] = 1;
  tensors.q.data = static_cast<char*>(tensors.q.data) + tensors.q.stride[0] * size_of(both.spec.q_dtype);
  data.poison_outputs();
  Engine engine(both.spec, data.capacity(), options);
  engine.run(engine.plan(alone), tensors);
  const std::vector<float> single_o = data.read_o(), single_lse = data.read_lse();
  EXPECT_EQ(std::memcmp(single_o.data(), o.o.data() + row, row * 4), 0);
  EXPECT_EQ(std::memcmp(single_lse.data(), o.lse.data() + heads, heads * 4), 0);
}

TEST(Empty, B03_EmptyKeysUnderMlaAndChunkedPrefill) { expect_right("B03"); }

TEST(Empty, B04_NoRequestsNoQueriesNoKeys) {
  expect_right("B04");
  // Not even tensors are needed where there is nothing to do.
  const Case c = bug_case("B04.no_requests");
  CaseData data(c);
  Engine engine(c.spec, data.capacity());
  const Plan plan = engine.plan(data.batch());
  EXPECT_EQ(plan.view().items.size, 0);
}

TEST(Empty, B05_TheWordBeforeThePageTableIsNeverAPage) {
  expect_right("B05");
  const Case c = bug_case("B05.csr");
  CaseData data(c);
  std::vector<int32_t> guarded{0x7fffffff};
  for (int64_t i = 0; i < data.batch().pages.size; ++i) guarded.push_back(int32_t(data.batch().pages[i]));
  guarded.push_back(0x7fffffff);
  Batch batch = data.batch();
  batch.pages = IndexView(guarded.data() + 1, batch.pages.size);
  RunTensors tensors = data.tensors();
  tensors.pages = batch.pages;
  std::vector<double> ref_o, ref_lse;
  data.reference(ref_o, ref_lse);
  for (const Policy policy : {Policy::none, Policy::stream, Policy::fill, Policy::fixed_split}) {
    Engine engine(c.spec, data.capacity(), with_policy(policy));
    data.poison_outputs();
    engine.run(engine.plan(batch), tensors);
    EXPECT_EQ(check::compare(c, data.read_o(), data.read_lse(), ref_o, ref_lse).fault, "");
  }
}

TEST(Empty, B06_DecodeOfZeroLengthsAndAPageTableOfWidthZero) {
  expect_right("B06");
  const Case c = bug_case("B06.all_zero");
  CaseData data(c);
  Batch batch = data.batch();  // a table of 16 rows without a page id; a stride of 0 would say CSR, so a width of 0 is a stride of 1
  batch.table_stride = 1;
  batch.pages = IndexView();
  batch.list_indptr = IndexView();
  RunTensors tensors = data.tensors();
  tensors.pages = IndexView();
  Engine engine(c.spec, data.capacity());
  data.poison_outputs();
  engine.run(engine.plan(batch), tensors);
  for (const float x : data.read_o()) ASSERT_EQ(x, 0.0f);
  for (const float x : data.read_lse()) ASSERT_EQ(x, -kInf);
}

}  // namespace
}  // namespace kvloom::bugs
