// WINCAP: windows, soft caps, ALiBi slopes and RoPE positions.
#include "tests/bugs/bug_case.h"

#include <cmath>

namespace kvloom::bugs {
namespace {

TEST(Window, B20_AWindowIsMaskedAndNotOnlySkipped) { expect_right("B20"); }

TEST(SoftCap, B21_IsAppliedOnEveryPath) {
  expect_right("B21");
  for (const char* name : {"B21.soft_cap_30", "B21.soft_cap_50"}) {  // and it is not a no-op here
    Case c = bug_case(name);
    CaseData capped(c);
    const Output with = run_once(capped);
    c.spec.variant.soft_cap = 0.0f;
    CaseData uncapped(c);
    const Output without = run_once(uncapped);
    double difference = 0.0, norm = 0.0;
    for (size_t i = 0; i < with.o.size(); ++i) {
      difference += std::pow(double(with.o[i]) - without.o[i], 2);
      norm += std::pow(double(with.o[i]), 2);
    }
    EXPECT_GT(std::sqrt(difference / norm), 0.1);
  }
}

TEST(Window, B22_LeftWKeepsWPlusOneKeys) {
  expect_right("B22");
  CaseData data(bug_case("B22.window_4"));  // "window 4" of a model is left 3 here: each row keeps 4 keys, its own among them
  for (int32_t j = 0; j < 8; ++j) data.set_k(0, j, 0, std::vector<float>(16, 0.0f));
  const Output got = run_once(data);
  for (int32_t i = 0; i < 8; ++i) EXPECT_FLOAT_EQ(got.lse[size_t(i)], std::log(float(std::min(i + 1, 4)))) << i;
  // A window as long as the sequence is plain causal, bit for bit.
  Case c = bug_case("B20.window");
  c.q_len = c.kv_len = {300};
  c.spec.variant.range.left = -1;
  CaseData plain(c);
  const Output causal = run_once(plain);
  for (const int32_t left : {299, 300}) {
    c.spec.variant.range.left = left;
    CaseData windowed(c);
    const Output o = run_once(windowed);
    double worst = 0.0;
    for (size_t i = 0; i < o.o.size(); ++i) worst = std::fmax(worst, std::fabs(double(o.o[i]) - causal.o[i]));
    EXPECT_LE(worst, 1e-6) << left;
  }
}

TEST(Window, B23_MinusOneIsNoWindowAndZeroIsOneKey) {
  expect_right("B23");
  CaseData data(bug_case("B23.window_0"));
  const Output got = run_once(data);
  // Row i keeps the one key at its own position: the output is V of that key, the LSE its logit.
  CaseData again(bug_case("B23.window_0"));
  for (int32_t i = 0; i < 5; ++i) again.set_v(0, 35 + i, 0, std::vector<float>(64, float(i + 1)));
  const Output v = run_once(again);
  for (int32_t i = 0; i < 5; ++i) {
    for (int32_t d = 0; d < 2 * 64; ++d) ASSERT_EQ(v.o[size_t(i * 128 + d)], float(i + 1));
  }
  EXPECT_TRUE(same_bits(v.lse, got.lse));
}

TEST(Window, B24_LimitsTheWorkAndNotOnlyTheAnswer) {
  AttentionSpec spec;
  spec.num_qo_heads = spec.num_kv_heads = 1;
  spec.head_dim_qk = spec.head_dim_vo = 16;
  spec.page_size = 16;
  spec.variant.range = {true, 127, -1};
  std::vector<uint64_t> costs;
  for (const int32_t kv_len : {1024, 131072}) {
    const int32_t n = 32;
    std::vector<int32_t> qo_indptr, lengths(n, kv_len), list_indptr, pages(size_t(n) * kv_len / 16, 0);
    for (int32_t r = 0; r <= n; ++r) qo_indptr.push_back(r), list_indptr.push_back(r * (kv_len / 16));
    Batch batch;
    batch.num_requests = n;
    batch.qo_indptr = IndexView(qo_indptr.data(), n + 1);
    batch.kv_len = IndexView(lengths.data(), n);
    batch.list_indptr = IndexView(list_indptr.data(), n + 1);
    batch.pages = IndexView(pages.data(), int64_t(pages.size()));
    Capacity capacity{n, n, int64_t(n) * kv_len, 0, 0};
    EngineOptions options = with_policy(Policy::stream, 16);
    options.levels = LevelMode::off;
    Engine engine(spec, capacity, options);
    const Plan plan = engine.plan(batch);
    int64_t tokens = 0, visits = 0;
    for (const WorkItem& item : plan.view().items) {
      tokens += item.kv_end - item.kv_begin;
      const KernelClass& k = plan.view().header->classes[item.kernel_class];
      visits += (item.kv_end + k.tile_kv - 1) / k.tile_kv - item.kv_begin / k.tile_kv;
    }
    EXPECT_EQ(tokens, n * 128) << "keys handed out for windows of 128 keys at length " << kv_len;
    EXPECT_LE(visits, n * ((127 + 1) / plan.view().header->classes[0].tile_kv + 2));
    costs.push_back(plan.view().header->cost_total);
  }
  EXPECT_LE(costs[1], costs[0] * 11 / 10);  // flat in the length
}

TEST(Alibi, B26_SlopesAreTheCallersWhateverTheLocalHeads) {
  // Heads 4..7 of 8 (and 5..9 of 10) on a rank of their own give what they give among all heads.
  for (const int32_t heads : {8, 10}) {
    Case all;
    all.seed = 77;
    all.spec.num_qo_heads = all.spec.num_kv_heads = heads;
    all.spec.head_dim_qk = all.spec.head_dim_vo = 64;
    all.spec.page_size = 16;
    all.spec.variant.alibi = true;
    all.spec.variant.range.causal = true;
    all.q_len = {3};
    all.kv_len = {64};
    CaseData whole(all);
    std::vector<float> slopes;
    for (int32_t h = 0; h < heads; ++h) slopes.push_back(std::exp2(-8.0f * float(h + 1) / float(heads)));
    RunTensors tensors = whole.tensors();
    tensors.alibi_slopes = slopes.data();
    Engine engine(all.spec, whole.capacity());
    engine.run(engine.plan(whole.batch()), tensors);
    const std::vector<float> o = whole.read_o();

    const int32_t local = heads / 2;
    AttentionSpec rank = all.spec;
    rank.num_qo_heads = rank.num_kv_heads = local;
    RunTensors part = tensors;
    const int64_t skip = local * 64 * int64_t(sizeof(float));
    for (Tensor* t : {&part.q, &part.k, &part.v}) {
      t->shape[t->ndim - 2] = local;
      t->data = static_cast<char*>(t->data) + skip;
    }
    std::vector<float> out(size_t(3 * local * 64));
    part.o = Tensor::dense(out.data(), DType::f32, {3, local, 64});
    part.lse = Tensor();
    part.alibi_slopes = slopes.data() + local;
    Engine sharded(rank, whole.capacity());
    sharded.run(sharded.plan(whole.batch()), part);
    double worst = 0.0;
    for (int32_t t = 0; t < 3; ++t) {
      for (int32_t i = 0; i < local * 64; ++i) {
        worst = std::fmax(worst, std::fabs(double(out[size_t(t * local * 64 + i)]) - o[size_t((t * heads + local) * 64 + i)]));
      }
    }
    EXPECT_LE(worst, 2e-6) << heads;
  }
}

TEST(Rope, B27_TurnsTheQueryAtItsOwnPosition) { expect_right("B27"); }

}  // namespace
}  // namespace kvloom::bugs
