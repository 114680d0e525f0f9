// VALID: what must be refused, by name and with both numbers; and tables that must not be.
#include "tests/bugs/bug_case.h"

#include <cmath>

namespace kvloom::bugs {
namespace {

bool names(const std::string& message, std::initializer_list<const char*> words) {
  for (const char* word : words) {
    if (message.find(word) == std::string::npos) return false;
  }
  return !message.empty();
}

TEST(Valid, B32_AMaskOfAnotherShapeIsRefused) {
  Case c;
  c.seed = 32;
  c.spec.num_qo_heads = 8;
  c.spec.num_kv_heads = 4;
  c.spec.head_dim_qk = c.spec.head_dim_vo = 128;
  c.spec.page_size = 16;
  c.spec.variant.custom_mask = true;
  c.mask = check::MaskKind::random;
  c.q_len = {10};
  c.kv_len = {20};
  CaseData data(c);
  Engine engine(c.spec, data.capacity());
  const Plan plan = engine.plan(data.batch());
  engine.run(plan, data.tensors());
  struct Shape {
    int64_t rows, columns;
  };
  for (const Shape s : {Shape{10, 15}, Shape{10, 25}, Shape{9, 20}}) {
    const std::vector<uint8_t> bits(size_t((s.rows * s.columns + 7) / 8), 0xff);
    const int64_t indptr[] = {0, int64_t(bits.size())};
    RunTensors tensors = data.tensors();
    tensors.mask = bits.data();
    tensors.mask_indptr = indptr;
    const std::string message = error_of([&] { engine.run(plan, tensors); });
    EXPECT_TRUE(names(message, {"mask", std::to_string(bits.size()).c_str(), "25"})) << message;  // got, and 10 x 20 bits = 25 bytes
  }
  RunTensors missing = data.tensors();
  missing.mask = nullptr;
  EXPECT_TRUE(names(error_of([&] { engine.run(plan, missing); }), {"mask"}));
  missing = data.tensors();
  missing.mask_indptr = nullptr;
  EXPECT_TRUE(names(error_of([&] { engine.run(plan, missing); }), {"mask_indptr"}));
}

TEST(Valid, B63_QueryRowsThatDisagreeWithThePlanAreRefused) {
  Case c = bug_case("B60.blocks_apart");
  c.q_len = {4};
  c.kv_len = {40};
  CaseData data(c);
  Engine engine(c.spec, data.capacity());
  const Plan plan = engine.plan(data.batch());
  for (const int64_t rows : {3, 5}) {
    RunTensors tensors = data.tensors();
    tensors.q.shape[0] = rows;
    EXPECT_TRUE(names(error_of([&] { engine.run(plan, tensors); }), {"q", std::to_string(rows).c_str(), "4"})) << rows;
    tensors = data.tensors();
    tensors.o.shape[0] = rows;
    EXPECT_TRUE(names(error_of([&] { engine.run(plan, tensors); }), {"o", std::to_string(rows).c_str(), "4"})) << rows;
  }
}

// Lengths are stated as kv_len, so there is no last_page_len to be wrong about; what a wrong one led to is a length that cannot be.
TEST(Valid, B64_LengthsThatCannotBeAreRefused) {
  const Case c = bug_case("B60.blocks_apart");
  CaseData data(c);
  Engine engine(c.spec, data.capacity());
  const int32_t negative[] = {40, -1}, falling[] = {0, 3, 2};
  Batch batch = data.batch();
  batch.kv_len = IndexView(negative, 2);
  EXPECT_TRUE(names(error_of([&] { engine.plan(batch); }), {"kv_len", "-1"})) << error_of([&] { engine.plan(batch); });
  batch = data.batch();
  batch.qo_indptr = IndexView(falling, 3);
  EXPECT_TRUE(names(error_of([&] { engine.plan(batch); }), {"qo_indptr"})) << error_of([&] { engine.plan(batch); });
  // A list that is shorter than its length is refused before anything is read past it.
  const int64_t starts[] = {0, 1, 2};
  batch = data.batch();
  batch.list_indptr = IndexView(starts, 3);
  EXPECT_NE(error_of([&] { engine.plan(batch); }), "");
}

TEST(Valid, B65_TypesThatDisagreeWithThePlanAreRefused) {
  const Case c = bug_case("B60.kv_in_row");  // q bf16, kv e4m3
  CaseData data(c);
  Engine engine(c.spec, data.capacity());
  const Plan plan = engine.plan(data.batch());
  RunTensors tensors = data.tensors();
  tensors.k.dtype = tensors.v.dtype = DType::bf16;
  EXPECT_TRUE(names(error_of([&] { engine.run(plan, tensors); }), {"bf16", "e4m3"}));
  tensors = data.tensors();
  tensors.q.dtype = DType::f32;
  EXPECT_TRUE(names(error_of([&] { engine.run(plan, tensors); }), {"f32", "bf16"}));
  tensors = data.tensors();
  tensors.o.dtype = DType::f32;
  EXPECT_TRUE(names(error_of([&] { engine.run(plan, tensors); }), {"f32", "bf16"}));
  // A plan of another engine is refused too.
  AttentionSpec other = c.spec;
  other.kv_dtype = DType::bf16;
  Engine second(other, data.capacity());
  EXPECT_NE(error_of([&] { second.run(plan, data.tensors()); }), "");
}

TEST(Valid, B66_TablesOfAnyWidthAndEntriesPastTheLength) {
  expect_right("B66");
  // Much wider than needed, the rest of each row unreadable as a page.
  Case c = bug_case("B66.width_33");
  CaseData data(c);
  const int64_t width = 8192;
  std::vector<int32_t> table(size_t(2 * width), 0x7fffffff);
  for (int64_t r = 0; r < 2; ++r) {
    for (int64_t e = 0; e < (c.kv_len[size_t(r)] + 31) / 32; ++e) {
      table[size_t(r * width + e)] = int32_t(data.batch().pages[r * data.batch().table_stride + e]);
    }
  }
  Batch batch = data.batch();
  batch.pages = IndexView(table.data(), int64_t(table.size()));
  batch.table_stride = width;
  RunTensors tensors = data.tensors();
  tensors.pages = batch.pages;
  const Output narrow = run_once(data, with_policy(Policy::stream));
  Engine engine(c.spec, data.capacity(), with_policy(Policy::stream));
  data.poison_outputs();
  engine.run(engine.plan(batch), tensors);
  EXPECT_TRUE(same_bits(data.read_o(), narrow.o));
}

// Scales beside a cache that has no use for them: the second half of B82.
TEST(Valid, B82_AScaleBesideA16BitCacheIsRefused) {
  const Case c = bug_case("B60.blocks_apart");
  CaseData data(c);
  Engine engine(c.spec, data.capacity());
  const Plan plan = engine.plan(data.batch());
  for (float ScaleParams::*scale : {&ScaleParams::k, &ScaleParams::v}) {
    RunTensors tensors = data.tensors();
    tensors.scale.*scale = 3.0f;
    EXPECT_TRUE(names(error_of([&] { engine.run(plan, tensors); }), {"scale", "3"}));
  }
}

}  // namespace
}  // namespace kvloom::bugs
