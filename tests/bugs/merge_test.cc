// MERGE: states, their LSE (base, layout, strides) and levels.
#include "tests/bugs/bug_case.h"

#include "cli/check/random.h"
#include "kvloom/api/ops.h"

#include <cmath>

namespace kvloom::bugs {
namespace {

constexpr float kInf = __builtin_inff();

Case decode_case(int32_t kv_len, DType type) {
  Case c;
  c.seed = 900;
  c.spec.num_qo_heads = 2;
  c.spec.num_kv_heads = 1;
  c.spec.head_dim_qk = c.spec.head_dim_vo = 64;
  c.spec.q_dtype = is_fp8(type) ? DType::bf16 : type;
  c.spec.o_dtype = DType::f32;
  c.spec.kv_dtype = type;
  c.spec.page_size = 16;
  c.q_len = {1};
  c.kv_len = {kv_len};
  return c;
}

TEST(Merge, B07_TwoEmptyStatesAreEmpty) {
  std::vector<uint16_t> zeros(64, 0), out(64, 0xffff);
  std::vector<float> empty{-kInf}, lse{0.0f};
  const Tensor v = Tensor::dense(zeros.data(), DType::f16, {1, 1, 64}), s = Tensor::dense(empty.data(), DType::f32, {1, 1});
  const Tensor o = Tensor::dense(out.data(), DType::f16, {1, 1, 64}), l = Tensor::dense(lse.data(), DType::f32, {1, 1});
  merge_states(v, s, v, s, o, l);
  EXPECT_EQ(out, zeros);
  EXPECT_EQ(lse[0], -kInf);
  for (const int64_t states : {0, 5}) {
    std::vector<uint16_t> many(size_t(5 * 64), 0);
    const std::vector<float> all_empty(5, -kInf);
    std::fill(out.begin(), out.end(), uint16_t(0xffff));
    lse[0] = 0.0f;
    merge_states_n(Tensor::dense(many.data(), DType::f16, {1, states, 1, 64}), Tensor::dense(all_empty.data(), DType::f32, {1, states, 1}),
                   o, l);
    EXPECT_EQ(out, zeros) << states;
    EXPECT_EQ(lse[0], -kInf) << states;
  }
}

TEST(Merge, B42_AnLseIsANaturalLogAndMergesAsOne) {
  // A prefix of 4096 and an extension of 64, merged, against one pass over 4160.
  Case whole_case = decode_case(4160, DType::f32);
  whole_case.spec.page_size = 64;
  whole_case.shuffle_pages = false;
  CaseData whole(whole_case);
  const Output one = run_once(whole);
  auto part = [&](int32_t first_page, int32_t tokens) {
    const int32_t kv_len[] = {tokens};
    const int64_t start[] = {whole.batch().list_indptr[0] + first_page};
    Batch batch = whole.batch();
    batch.kv_len = IndexView(kv_len, 1);
    batch.list_indptr = IndexView(start, 1);
    whole.poison_outputs();
    Engine engine(whole_case.spec, whole.capacity());
    engine.run(engine.plan(batch), whole.tensors());
    return Output{whole.read_o(), whole.read_lse()};
  };
  Output prefix = part(0, 4096), tail = part(64, 64);
  std::vector<float> o(128), lse(2);
  merge_states(Tensor::dense(prefix.o.data(), DType::f32, {1, 2, 64}), Tensor::dense(prefix.lse.data(), DType::f32, {1, 2}),
               Tensor::dense(tail.o.data(), DType::f32, {1, 2, 64}), Tensor::dense(tail.lse.data(), DType::f32, {1, 2}),
               Tensor::dense(o.data(), DType::f32, {1, 2, 64}), Tensor::dense(lse.data(), DType::f32, {1, 2}));
  for (size_t i = 0; i < o.size(); ++i) EXPECT_NEAR(o[i], one.o[i], 1e-6);
  for (size_t i = 0; i < lse.size(); ++i) EXPECT_NEAR(lse[i], one.lse[i], 1e-5);
}

TEST(Merge, B43_EqualScoresGiveTheLogOfTheCountOnEveryPath) {
  for (const DType type : {DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2}) {
    for (const Storage storage : {Storage::ragged, Storage::paged}) {
      for (const int32_t q_len : {1, 3, 40}) {
        Case c = decode_case(4, type);
        c.spec.storage = storage;
        c.spec.page_size = storage == Storage::paged ? 1 : 16;
        c.q_len = {q_len};
        c.q_gain = 0.0f;
        CaseData data(c);
        for (const Policy policy : {Policy::none, Policy::stream, Policy::fill, Policy::fixed_split}) {
          const Output got = run_once(data, with_policy(policy));
          for (const float lse : got.lse) ASSERT_NEAR(lse, 1.386294361, 2e-7) << name_of(type) << " " << q_len;
        }
      }
    }
  }
  Case split = decode_case(4096, DType::bf16);
  split.q_gain = 0.0f;
  CaseData data(split);
  const Output got = run_once(data, with_policy(Policy::stream, 7));
  for (const float lse : got.lse) EXPECT_NEAR(lse, std::log(4096.0), 2e-6);
}

TEST(Merge, B44_AnEmptyChunkIsTheIdentityWhateverItsMark) {
  for (const float mark : {-kInf, kInf}) {
    std::vector<float> normal(20 * 64), empty(20 * 64, std::nanf("")), o(20 * 64);
    for (size_t i = 0; i < normal.size(); ++i) normal[i] = check::stream_value(4, check::Stream::v, i);
    std::vector<float> lse_b(20, 1.5f), lse_a(20, 0.5f), lse(20);
    for (int i = 0; i < 10; ++i) lse_a[size_t(i)] = mark;  // the first chunk has no keys for rows 0..9
    std::vector<float> first = normal;
    std::copy(empty.begin(), empty.begin() + 10 * 64, first.begin());
    merge_states(Tensor::dense(first.data(), DType::f32, {20, 1, 64}), Tensor::dense(lse_a.data(), DType::f32, {20, 1}),
                 Tensor::dense(normal.data(), DType::f32, {20, 1, 64}), Tensor::dense(lse_b.data(), DType::f32, {20, 1}),
                 Tensor::dense(o.data(), DType::f32, {20, 1, 64}), Tensor::dense(lse.data(), DType::f32, {20, 1}));
    for (int i = 0; i < 20; ++i) {
      EXPECT_FLOAT_EQ(lse[size_t(i)], i < 10 ? 1.5f : std::log(std::exp(0.5f) + std::exp(1.5f)));
      for (int d = 0; d < 64; ++d) ASSERT_NEAR(o[size_t(i * 64 + d)], normal[size_t(i * 64 + d)], 1e-6);
    }
  }
}

TEST(Merge, B45_EmptyRequestsDamageNoOtherLse) {
  expect_right("B45");
  CaseData data(bug_case("B45.two_empty_of_64"));
  const Output got = run_once(data);
  for (size_t i = 0; i < got.lse.size(); ++i) EXPECT_EQ(got.lse[i] == -kInf, i / 8 == 1 || i / 8 == 10) << "request " << i / 8;
}

TEST(Merge, B46_EachSideHasItsOwnStrides) {
  const int64_t rows = 9, heads = 16;
  std::vector<float> wide(size_t(rows * heads * 192), std::nanf("")), dense(size_t(rows * heads * 128)), copy(dense.size()),
      lse(size_t(rows * heads));
  for (size_t i = 0; i < dense.size(); ++i) {
    dense[i] = check::stream_value(5, check::Stream::v, i);
    copy[i] = check::stream_value(5, check::Stream::k, i);
    wide[i / 128 * 192 + i % 128] = copy[i];  // o_a = buffer[..., :128]
  }
  std::vector<float> transposed(lse.size());
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      lse[size_t(t * heads + h)] = check::stream_value(5, check::Stream::q, uint64_t(t * heads + h));
      transposed[size_t(h * rows + t)] = lse[size_t(t * heads + h)];
    }
  }
  Tensor o_a = Tensor::dense(wide.data(), DType::f32, {rows, heads, 128});
  o_a.stride[0] = heads * 192;
  o_a.stride[1] = 192;
  Tensor lse_a = Tensor::dense(transposed.data(), DType::f32, {rows, heads});
  lse_a.stride[0] = 1;
  lse_a.stride[1] = rows;
  const std::vector<float> lse_b(lse.size(), 0.25f);
  std::vector<float> o(dense.size()), l(lse.size()), want_o(dense.size()), want_l(lse.size());
  auto tensor = [&](const std::vector<float>& x) { return Tensor::dense(x.data(), DType::f32, {rows, heads, 128}); };
  auto flat = [&](const std::vector<float>& x) { return Tensor::dense(x.data(), DType::f32, {rows, heads}); };
  // As views the last dimension of the transposed LSE is not contiguous: it is honoured or refused, never misread.
  const std::string refused = error_of([&] { merge_states(o_a, lse_a, tensor(dense), flat(lse_b), tensor(o), flat(l)); });
  if (!refused.empty()) merge_states(o_a, flat(lse), tensor(dense), flat(lse_b), tensor(o), flat(l));
  merge_states(tensor(copy), flat(lse), tensor(dense), flat(lse_b), tensor(want_o), flat(want_l));
  EXPECT_TRUE(same_bits(o, want_o));
  EXPECT_TRUE(same_bits(l, want_l));
}

// 1024 tokens shared by 50 requests, a page each group of ten shares, and tails of 0, 1, 17 and 300 tokens: as three levels, and as one list each.
TEST(Merge, B48_LevelsGiveWhatOneFlatListGives) { expect_right("B48"); }

TEST(Merge, B49_TheLseIsTokensByHeadsOnEveryPath) { expect_right("B49"); }

}  // namespace
}  // namespace kvloom::bugs
