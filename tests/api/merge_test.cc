// merge_states, _n, _ragged against the algebra in double: types, strides, in place, empty and infinite states.
#include "kvloom/api/ops.h"
#include "tests/support/tensors.h"

#include <gtest/gtest.h>

namespace kvloom::test {
namespace {

constexpr float kInf = __builtin_inff();

/// The merge of `states` (O row, LSE) of one row in double.
struct Merged {
  std::vector<double> o;
  double lse;
};
Merged merge_in_double(const std::vector<std::pair<std::vector<double>, double>>& states, int64_t dim) {
  Merged m{std::vector<double>(size_t(dim), 0.0), -INFINITY};
  double largest = -INFINITY, sum = 0.0;
  for (const auto& [o, lse] : states) {
    if (!std::isinf(lse)) largest = std::max(largest, lse);
  }
  if (largest == -INFINITY) return m;
  for (const auto& [o, lse] : states) {
    if (std::isinf(lse)) continue;
    const double w = std::exp(lse - largest);
    sum += w;
    for (int64_t d = 0; d < dim; ++d) m.o[size_t(d)] += w * o[size_t(d)];
  }
  for (double& x : m.o) x /= sum;
  m.lse = largest + std::log(sum);
  return m;
}

std::vector<double> row_of(const Tensor& o, int64_t i, int64_t j, int64_t k = -1) {
  std::vector<double> row;
  const int64_t dim = o.shape[o.ndim - 1];
  for (int64_t d = 0; d < dim; ++d) row.push_back(k < 0 ? at(o, i, j, d) : at(o, i, j, k, d));
  return row;
}

void expect_merged(const Merged& want, const Tensor& o, const Tensor& lse, int64_t row, int64_t head, double tolerance) {
  for (size_t d = 0; d < want.o.size(); ++d) {
    ASSERT_NEAR(at(o, row, head, int64_t(d)), want.o[d], tolerance * (1.0 + std::fabs(want.o[d]))) << row << " " << head << " " << d;
  }
  if (std::isinf(want.lse)) {
    ASSERT_EQ(at(lse, row, head), -kInf);
  } else {
    ASSERT_NEAR(at(lse, row, head), want.lse, 1e-5 * (1.0 + std::fabs(want.lse)));
  }
}

double tolerance_of(DType t) { return t == DType::bf16 ? 5e-3 : t == DType::f16 ? 6e-4 : 1e-6; }

TEST(MergeStates, EveryPairOfTypesAndOddDims) {
  for (const DType a : {DType::f32, DType::f16, DType::bf16}) {
    for (const DType out : {DType::f32, DType::f16, DType::bf16}) {
      for (const int64_t dim : {1, 7, 64, 129, 300}) {
        const Array o_a = std::move(Array(a, {5, 3, dim}).normal(1)), o_b = std::move(Array(DType::bf16, {5, 3, dim}).normal(2));
        const Array lse_a = std::move(Array(DType::f32, {5, 3}).normal(3, 6.0f)),
                    lse_b = std::move(Array(DType::f32, {5, 3}).normal(4, 6.0f));
        Array o(out, {5, 3, dim}), lse(DType::f32, {5, 3});
        o.fill(NAN);
        merge_states(o_a, lse_a, o_b, lse_b, o, lse);
        for (int64_t r = 0; r < 5; ++r) {
          for (int64_t h = 0; h < 3; ++h) {
            const Merged want = merge_in_double({{row_of(o_a, r, h), at(lse_a, r, h)}, {row_of(o_b, r, h), at(lse_b, r, h)}}, dim);
            expect_merged(want, o, lse, r, h, tolerance_of(out));
          }
        }
      }
    }
  }
}

TEST(MergeStates, B07_EmptyStatesMergeToTheEmptyState) {
  Array v(DType::f16, {1, 1, 64}), s(DType::f32, {1, 1}), o(DType::f16, {1, 1, 64}), lse(DType::f32, {1, 1});
  s.set(0, -kInf);
  const auto expect_empty = [&] {
    for (int64_t d = 0; d < 64; ++d) EXPECT_EQ(o.get(d), 0.0f);
    EXPECT_EQ(lse.get(0), -kInf);
    o.fill(NAN);
    lse.fill(NAN);
  };
  o.fill(NAN);
  merge_states(v, s, v, s, o, lse);
  expect_empty();
  const Array none(DType::f16, {1, 0, 1, 64}), none_lse(DType::f32, {1, 0, 1});
  merge_states_n(none, none_lse, o, lse);
  expect_empty();
  Array three(DType::f16, {1, 3, 1, 64}), three_lse(DType::f32, {1, 3, 1});
  three.fill(NAN);  // what an empty state holds is nobody's business
  three_lse.fill(-kInf);
  merge_states_n(three, three_lse, o, lse);
  expect_empty();
  const int32_t indptr[] = {0, 0};
  merge_states_ragged(Array(DType::f16, {0, 1, 64}), Array(DType::f32, {0, 1}), IndexView(indptr, 2), o, lse);
  expect_empty();
  merge_states(v, s, v, s, v, s);  // in place
  EXPECT_EQ(s.get(0), -kInf);
  EXPECT_EQ(v.get(5), 0.0f);
}

TEST(MergeStates, B44_InfiniteLseIsEmptyWhateverItsSignAndLeavesTheOtherSideAsItIs) {
  for (const float empty : {-kInf, kInf}) {
    Array o_a(DType::f32, {2, 1, 40}), lse_a(DType::f32, {2, 1}), o(DType::f32, {2, 1, 40}), lse(DType::f32, {2, 1});
    o_a.fill(NAN);
    lse_a.fill(empty);
    Array o_b = std::move(Array(DType::f32, {2, 1, 40}).normal(9));
    const Array lse_b = std::move(Array(DType::f32, {2, 1}).normal(10));
    o_b.set(3, -0.0f);
    merge_states(o_a, lse_a, o_b, lse_b, o, lse);
    EXPECT_EQ(o.bytes, o_b.bytes);
    EXPECT_EQ(lse.bytes, lse_b.bytes);
    merge_states(o_b, lse_b, o_a, lse_a, o, lse);
    EXPECT_EQ(o.bytes, o_b.bytes);
    EXPECT_EQ(lse.bytes, lse_b.bytes);
  }
}

TEST(MergeStates, NaNStaysNaN) {
  Array o_a = std::move(Array(DType::f32, {1, 1, 16}).normal(1)), lse_a(DType::f32, {1, 1}), o(DType::f32, {1, 1, 16}),
        lse(DType::f32, {1, 1});
  lse_a.set(0, NAN);
  const Array o_b = std::move(Array(DType::f32, {1, 1, 16}).normal(2)), lse_b = std::move(Array(DType::f32, {1, 1}).normal(3));
  for (const bool swapped : {false, true}) {
    swapped ? merge_states(o_b, lse_b, o_a, lse_a, o, lse) : merge_states(o_a, lse_a, o_b, lse_b, o, lse);
    EXPECT_TRUE(std::isnan(lse.get(0)));
    EXPECT_TRUE(std::isnan(o.get(0)));
  }
}

TEST(MergeStates, B46_EachTensorHasStridesOfItsOwn) {
  const int64_t tokens = 37, heads = 16;
  const Array wide = std::move(Array(DType::bf16, {tokens, heads, 192}).normal(1)),
              dense = std::move(Array(DType::bf16, {tokens, heads, 128}).normal(2));
  const Array lse_t = std::move(Array(DType::f32, {heads, tokens}).normal(3)),
              lse_b = std::move(Array(DType::f32, {tokens, heads}).normal(4));
  Tensor o_a = wide, lse_a = lse_t;
  o_a.shape[2] = 128;
  std::swap(lse_a.shape[0], lse_a.shape[1]);
  std::swap(lse_a.stride[0], lse_a.stride[1]);
  Array copy(DType::bf16, {tokens, heads, 128}), lse_copy(DType::f32, {tokens, heads});
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      lse_copy.set(t * heads + h, at(lse_a, t, h));
      for (int64_t d = 0; d < 128; ++d) copy.set((t * heads + h) * 128 + d, at(o_a, t, h, d));
    }
  }
  Array want(DType::bf16, {tokens, heads, 128}), want_lse(DType::f32, {tokens, heads}), got(DType::bf16, {tokens, heads, 128}),
      got_lse(DType::f32, {tokens, heads});
  merge_states(copy, lse_copy, dense, lse_b, want, want_lse);
  merge_states(o_a, lse_a, dense, lse_b, got, got_lse);
  EXPECT_EQ(got.bytes, want.bytes);
  EXPECT_EQ(got_lse.bytes, want_lse.bytes);
  // In place into the strided side: the columns behind it keep their bits.
  const std::vector<char> before = wide.bytes;
  merge_states(o_a, lse_a, dense, lse_b, o_a, lse_a);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      const size_t row = size_t((t * heads + h) * 192) * 2, dense_row = size_t((t * heads + h) * 128) * 2;
      ASSERT_EQ(std::memcmp(wide.bytes.data() + row, want.bytes.data() + dense_row, 256), 0);
      ASSERT_EQ(std::memcmp(wide.bytes.data() + row + 256, before.data() + row + 256, 128), 0);
      ASSERT_EQ(at(lse_a, t, h), want_lse.get(t * heads + h));
    }
  }
}

TEST(MergeStates, ManyStatesInOneCall) {
  const int64_t rows = 6, states = 5, heads = 2, dim = 48;
  const Array o_in = std::move(Array(DType::f32, {rows, states, heads, dim}).normal(1));
  Array lse_in = std::move(Array(DType::f32, {rows, states, heads}).normal(2, 20.0f));
  lse_in.set(3, -kInf);
  lse_in.set(8, kInf);
  Array o(DType::f32, {rows, heads, dim}), lse(DType::f32, {rows, heads});
  merge_states_n(o_in, lse_in, o, lse);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t h = 0; h < heads; ++h) {
      std::vector<std::pair<std::vector<double>, double>> list;
      for (int64_t s = 0; s < states; ++s) list.emplace_back(row_of(o_in, r, s, h), at(lse_in, r, s, h));
      expect_merged(merge_in_double(list, dim), o, lse, r, h, 2e-6);
    }
  }
}

TEST(MergeStates, RaggedRowsOfAnyNumberOfStates) {
  const int64_t heads = 3, dim = 33;
  for (const bool wide_index : {false, true}) {
    const std::vector<int32_t> p32{2, 2, 3, 10, 12};
    const std::vector<int64_t> p64(p32.begin(), p32.end());
    const IndexView indptr = wide_index ? IndexView(p64.data(), 5) : IndexView(p32.data(), 5);
    const Array o_in = std::move(Array(DType::f16, {14, heads, dim}).normal(1)),
                lse_in = std::move(Array(DType::f32, {14, heads}).normal(2, 3.0f));
    Array o(DType::f32, {4, heads, dim}), lse(DType::f32, {4, heads});
    merge_states_ragged(o_in, lse_in, indptr, o, lse);
    for (int64_t r = 0; r < 4; ++r) {
      for (int64_t h = 0; h < heads; ++h) {
        std::vector<std::pair<std::vector<double>, double>> list;
        for (int64_t i = p32[size_t(r)]; i < p32[size_t(r + 1)]; ++i) list.emplace_back(row_of(o_in, i, h), at(lse_in, i, h));
        expect_merged(merge_in_double(list, dim), o, lse, r, h, 2e-6);
      }
    }
  }
}

TEST(MergeStates, BigMergesByThreadsHaveTheBitsOfSmallOnes) {
  const int64_t rows = 700, heads = 8, dim = 128;
  const Array o_a = std::move(Array(DType::f32, {rows, heads, dim}).normal(1)),
              o_b = std::move(Array(DType::f32, {rows, heads, dim}).normal(2));
  const Array lse_a = std::move(Array(DType::f32, {rows, heads}).normal(3)), lse_b = std::move(Array(DType::f32, {rows, heads}).normal(4));
  Array o(DType::f32, {rows, heads, dim}), lse(DType::f32, {rows, heads}), row_o(DType::f32, {1, heads, dim}),
      row_lse(DType::f32, {1, heads});
  merge_states(o_a, lse_a, o_b, lse_b, o, lse);
  const auto row = [](const Tensor& t, int64_t r) {
    Tensor one = t;
    one.shape[0] = 1;
    one.data = static_cast<float*>(t.data) + r * t.stride[0];
    return one;
  };
  for (int64_t r = 0; r < rows; r += 13) {
    merge_states(row(o_a, r), row(lse_a, r), row(o_b, r), row(lse_b, r), row_o, row_lse);
    ASSERT_EQ(std::memcmp(row_o.bytes.data(), o.bytes.data() + size_t(r) * row_o.bytes.size(), row_o.bytes.size()), 0);
    ASSERT_EQ(std::memcmp(row_lse.bytes.data(), lse.bytes.data() + size_t(r) * row_lse.bytes.size(), row_lse.bytes.size()), 0);
  }
}

}  // namespace
}  // namespace kvloom::test
