// The bytes of the KV pool: where a token's rows lie, what they hold, copies, and what was never written.
#include "cli/replay/kv_store.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

namespace kvloom::replay {
namespace {

/// The row of (page, slot, head) of a pool's tensor, as bytes.
std::string row(const Tensor& t, KvLayout layout, int32_t page, int32_t slot, int32_t head) {
  const int64_t i = layout == KvLayout::hnd ? head : slot, j = layout == KvLayout::hnd ? slot : head;
  const int64_t at = page * t.stride[0] + i * t.stride[1] + j * t.stride[2];
  return {static_cast<const char*>(t.data) + at * size_of(t.dtype), size_t(t.shape[3]) * size_t(size_of(t.dtype))};
}

bool all_nan(const Tensor& t, const std::string& bytes) {
  for (int64_t d = 0; d < t.shape[3]; ++d) {
    if (!std::isnan(load_as_float(bytes.data(), t.dtype, d))) return false;
  }
  return true;
}

Sequence sequence_on(std::vector<int32_t> pages) {
  Sequence s;
  s.pages = std::move(pages);
  return s;
}

TraceRequest prompt(std::vector<uint64_t> blocks) {
  TraceRequest r;
  r.prompt_tokens = 64;
  r.blocks = std::move(blocks);
  r.block_tokens = 32;
  return r;
}

struct Form {
  const char* model;
  DType dtype;
  KvLayout layout;
};

class KvStoreForms : public testing::TestWithParam<Form> {};

TEST_P(KvStoreForms, EveryTokenAndHeadHasARowOfItsOwnAndEqualPrefixesAreEqual) {
  const auto& [name, dtype, layout] = GetParam();
  const Model model = find_model(name);
  KvStore store(model, {dtype, layout, 16, 12, 2}, 7);
  const Content a(prompt({1, 2}), 0), b(prompt({1, 3}), 1);
  const Sequence on_a = sequence_on({3, 0, 7, 2}), on_b = sequence_on({5, 9, 1, 4});
  std::vector<PageEvent> fresh;
  for (int32_t page = 0; page < 12; ++page) fresh.push_back({-1, page});
  store.apply(fresh);
  store.append(on_a, {0, 60, 60}, a);  // four slots of the last page stay unwritten
  store.append(on_b, {1, 60, 60}, b);
  std::set<std::string> k_rows, v_rows;
  for (int32_t layer = 0; layer < 2; ++layer) {
    const Tensor k = store.k(layer), v = store.v(layer);
    for (int32_t pos = 0; pos < 64; ++pos) {
      for (int32_t head = 0; head < model.kv_heads; ++head) {
        const std::string ka = row(k, layout, on_a.pages[size_t(pos / 16)], pos % 16, head),
                          kb = row(k, layout, on_b.pages[size_t(pos / 16)], pos % 16, head);
        const std::string va = row(v, layout, on_a.pages[size_t(pos / 16)], pos % 16, head);
        if (pos >= 60) {
          EXPECT_TRUE(all_nan(k, ka) && all_nan(v, va));
          continue;
        }
        EXPECT_EQ(ka == kb, pos < 32) << "position " << pos;  // one block in common
        if (model.v_in_k) {
          EXPECT_EQ(va, ka.substr(0, va.size()));
        }
        k_rows.insert(ka);
        v_rows.insert(va);
      }
    }
  }
  const size_t rows = size_t(2 * 60) * size_t(model.kv_heads);
  EXPECT_GT(k_rows.size(), rows * 98 / 100);  // rows come from 65536 places: now and then two are the same
  EXPECT_GT(v_rows.size(), rows * 98 / 100);
  EXPECT_NE(row(store.k(0), layout, 3, 0, 0), row(store.k(1), layout, 3, 0, 0));
}

INSTANTIATE_TEST_SUITE_P(All, KvStoreForms,
                         testing::Values(Form{"smollm2-135m", DType::bf16, KvLayout::hnd}, Form{"smollm2-135m", DType::f32, KvLayout::nhd},
                                         Form{"smollm2-135m", DType::e4m3, KvLayout::hnd}, Form{"llama-3.1-8b", DType::e5m2, KvLayout::nhd},
                                         Form{"deepseek-v3", DType::f16, KvLayout::hnd}));

TEST(KvStore, CopiesAndFreshPagesComeInTheOrderGiven) {
  const Model model = find_model("smollm2-135m");
  KvStore store(model, {DType::bf16, KvLayout::hnd, 16, 4, 1}, 7);
  const Content content(prompt({}), 0);
  store.append(sequence_on({0}), {0, 16, 16}, content);
  const std::string written = row(store.v(0), KvLayout::hnd, 0, 5, 1);
  store.apply({{0, 2}, {-1, 0}, {2, 3}, {-1, 2}});  // page 0 is given away after it was copied
  EXPECT_EQ(row(store.v(0), KvLayout::hnd, 3, 5, 1), written);
  EXPECT_TRUE(all_nan(store.v(0), row(store.v(0), KvLayout::hnd, 0, 5, 1)));
  EXPECT_TRUE(all_nan(store.k(0), row(store.k(0), KvLayout::hnd, 2, 5, 1)));
}

TEST(Values, AreRoughlyNormalInEveryType) {
  for (int t = 0; t < kNumDTypes; ++t) {
    const auto dtype = static_cast<DType>(t);
    const Values values(dtype, 3, 2.0f);
    double sum = 0.0, square = 0.0;
    constexpr int kRows = 500;
    for (uint64_t i = 0; i < kRows; ++i) {
      for (int d = 0; d < 64; ++d) {
        const double x = load_as_float(values.row(piece_of(i, 0)), dtype, d);
        ASSERT_TRUE(std::isfinite(x));
        sum += x;
        square += x * x;
      }
    }
    EXPECT_NEAR(sum / (kRows * 64), 0.0, 0.1) << name_of(dtype);
    EXPECT_NEAR(std::sqrt(square / (kRows * 64)), 2.0, 0.1) << name_of(dtype);
  }
}

TEST(Content, ContinuationsDifferOnlyPastThePrompt) {
  const Content c(prompt({1, 2}), 0), other(prompt({4, 2}), 1);
  EXPECT_EQ(c.token(63, 0), c.token(63, 1));
  EXPECT_NE(c.token(64, 0), c.token(64, 1));
  EXPECT_NE(c.token(40, 0), other.token(40, 0));  // the same block id after another one is other content
  const Content alone(prompt({}), 2), alone_too(prompt({}), 3);
  EXPECT_FALSE(alone.shareable());
  EXPECT_NE(alone.token(0, 0), alone_too.token(0, 0));
}

}  // namespace
}  // namespace kvloom::replay
