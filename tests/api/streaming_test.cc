// StreamingLLM: a cache that keeps the first tokens (attention sinks) and a rolling window of the newest ones. Keys lie there as they were before
// RoPE, which turns query and keys by their place in the cache; what was evicted leaves no gap. Every step of a long text against sums in double.
#include "kvloom/api/engine.h"
#include "kvloom/api/ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace kvloom::test {
namespace {

constexpr int32_t kHeads = 4, kKvHeads = 2, kDim = 32, kSteps = 90;

struct Stream {
  std::vector<std::vector<float>> q, k, v;  // by token of the text
  Stream() {
    std::mt19937 random(11);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<std::vector<float>>& to, int32_t heads) {
      to.assign(kSteps, std::vector<float>(size_t(heads) * kDim));
      for (auto& token : to) {
        for (float& x : token) x = normal(random);
      }
    };
    fill(q, kHeads), fill(k, kKvHeads), fill(v, kKvHeads);
  }
};

/// Turned by `pos` as half_split says: dim i with i + kDim / 2.
std::vector<double> turned(const float* x, int32_t pos) {
  std::vector<double> y(kDim);
  for (int32_t i = 0; i < kDim / 2; ++i) {
    const double angle = pos * std::pow(10000.0, -2.0 * i / kDim), c = std::cos(angle), s = std::sin(angle);
    y[size_t(i)] = x[i] * c - x[i + kDim / 2] * s;
    y[size_t(i) + kDim / 2] = x[i + kDim / 2] * c + x[i] * s;
  }
  return y;
}

/// Attention of the text's token `now` over the tokens `kept`, the last of which it is: positions are places in that list.
std::vector<double> expected(const Stream& text, int32_t now, const std::vector<int32_t>& kept) {
  std::vector<double> o;
  for (int32_t h = 0; h < kHeads; ++h) {
    const int32_t kv = h / (kHeads / kKvHeads);
    const std::vector<double> q = turned(&text.q[size_t(now)][size_t(h) * kDim], int32_t(kept.size()) - 1);
    std::vector<double> sum(kDim);
    double total = 0;
    for (size_t j = 0; j < kept.size(); ++j) {
      const std::vector<double> k = turned(&text.k[size_t(kept[j])][size_t(kv) * kDim], int32_t(j));
      const double w = std::exp(std::inner_product(q.begin(), q.end(), k.begin(), 0.0) / std::sqrt(double(kDim)));
      total += w;
      for (int32_t d = 0; d < kDim; ++d) sum[size_t(d)] += w * text.v[size_t(kept[j])][size_t(kv * kDim + d)];
    }
    for (const double x : sum) o.push_back(x / total);
  }
  return o;
}

/// A cache of `pages` pages and one query token.
struct Cache {
  AttentionSpec spec;
  std::vector<float> k, v, q, o;
  RunTensors tensors;

  Cache(int32_t pages, int32_t page_size) {
    spec.num_qo_heads = kHeads, spec.num_kv_heads = kKvHeads, spec.head_dim_qk = spec.head_dim_vo = kDim;
    spec.page_size = page_size;
    spec.variant.range.causal = true;
    spec.variant.rope.mode = RopeMode::half_split;
    k.assign(size_t(pages * page_size * kKvHeads * kDim), NAN);
    v = k;
    q.resize(size_t(kHeads) * kDim), o = q;
    tensors.q = Tensor::dense(q.data(), DType::f32, {1, kHeads, kDim});
    tensors.o = Tensor::dense(o.data(), DType::f32, {1, kHeads, kDim});
    tensors.k = Tensor::dense(k.data(), DType::f32, {pages, page_size, kKvHeads, kDim});
    tensors.v = Tensor::dense(v.data(), DType::f32, {pages, page_size, kKvHeads, kDim});
  }
  void write(const Stream& text, int32_t token, int32_t page, int32_t slot) {
    const size_t at = size_t((page * spec.page_size + slot) * kKvHeads * kDim);
    std::copy(text.k[size_t(token)].begin(), text.k[size_t(token)].end(), k.begin() + int64_t(at));
    std::copy(text.v[size_t(token)].begin(), text.v[size_t(token)].end(), v.begin() + int64_t(at));
  }
  void check(const Stream& text, int32_t now, const std::vector<int32_t>& kept) {
    const std::vector<double> want = expected(text, now, kept);
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(o[i], want[i], 2e-6) << "token " << now << ", element " << i;
  }
};

EngineOptions few_ctas() {
  EngineOptions o;
  o.threads = 1;
  o.num_ctas = 5;
  return o;
}

// A list of pages: the sinks', then the window's, of which the oldest leaves when a new one is needed. Places in the list are the positions.
TEST(Streaming, WholePagesRoll) {
  constexpr int32_t kPage = 4, kSinkPages = 1, kWindowPages = 5;
  const Stream text;
  Cache cache(kSinkPages + kWindowPages, kPage);
  Engine engine(cache.spec, {1, 1, (kSinkPages + kWindowPages) * kPage, 0, 0}, few_ctas());
  std::vector<int32_t> pages, kept;
  for (int32_t now = 0; now < kSteps; ++now) {
    if (kept.size() % kPage == 0) {
      int32_t fresh = int32_t(pages.size());
      if (fresh == kSinkPages + kWindowPages) {
        fresh = pages[kSinkPages];
        pages.erase(pages.begin() + kSinkPages);
        kept.erase(kept.begin() + kSinkPages * kPage, kept.begin() + (kSinkPages + 1) * kPage);
      }
      pages.push_back(fresh);
    }
    cache.write(text, now, pages.back(), int32_t(kept.size()) % kPage);
    kept.push_back(now);
    cache.q = text.q[size_t(now)];
    cache.tensors.q.data = cache.q.data();
    const int32_t qo_indptr[2] = {0, 1}, kv_len[1] = {int32_t(kept.size())}, list_indptr[2] = {0, int32_t(pages.size())};
    Batch batch;
    batch.num_requests = 1;
    batch.qo_indptr = IndexView(qo_indptr, 2), batch.kv_len = IndexView(kv_len, 1), batch.list_indptr = IndexView(list_indptr, 2);
    batch.pages = cache.tensors.pages = IndexView(pages.data(), int64_t(pages.size()));
    engine.run(engine.plan(batch), cache.tensors);
    cache.check(text, now, kept);
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_EQ(kept.front(), 0);
  EXPECT_GT(kept[kPage], kSteps - 1 - kWindowPages * kPage) << "nothing but sinks and the newest tokens";
}

// Token by token: 3 sinks, of a page of their own, and exactly the newest 20 tokens, whose first page has slots that were evicted. Two groups of rows
// for one query token, whose states are merged.
TEST(Streaming, TokensRoll) {
  constexpr int32_t kPage = 8, kSinks = 3, kWindow = 20, kWindowPages = 4;
  const Stream text;
  Cache cache(1 + kWindowPages, kPage);
  Engine engine(cache.spec, {1, 1, (1 + kWindowPages) * kPage, 1, 2}, few_ctas());
  for (int32_t now = kSinks; now < kSteps; ++now) {
    if (now == kSinks) {
      for (int32_t sink = 0; sink < kSinks; ++sink) cache.write(text, sink, 0, sink);
    }
    // Window token t lies in slot (t - kSinks) of a ring of pages behind the sinks' page.
    const auto page_of = [&](int32_t token) { return 1 + (token - kSinks) / kPage % kWindowPages; };
    cache.write(text, now, page_of(now), (now - kSinks) % kPage);
    const int32_t first = std::max(kSinks, now + 1 - kWindow), skipped = (first - kSinks) % kPage;
    std::vector<int32_t> kept(kSinks), pages{0};
    std::iota(kept.begin(), kept.end(), 0);
    for (int32_t t = first - skipped; t <= now; t += kPage) pages.push_back(page_of(t));
    for (int32_t t = first; t <= now; ++t) kept.push_back(t);
    cache.q = text.q[size_t(now)];
    cache.tensors.q.data = cache.q.data();
    const int32_t qo_indptr[2] = {0, 1}, kv_len[1] = {int32_t(kept.size())}, q_pos0[1] = {int32_t(kept.size()) - 1}, token[1] = {0};
    LevelGroup groups[2];
    groups[0].kv_end = kSinks;
    groups[1].level = 1, groups[1].list_begin = 1;
    groups[1].kv_begin = skipped, groups[1].kv_end = skipped + now + 1 - first;
    groups[1].kv_pos0 = kSinks - skipped;
    for (LevelGroup& g : groups) g.tokens = {token, 1};
    Batch batch;
    batch.num_requests = 1;
    batch.qo_indptr = IndexView(qo_indptr, 2), batch.kv_len = IndexView(kv_len, 1), batch.q_pos0 = q_pos0;
    batch.groups = {groups, 2};
    batch.pages = cache.tensors.pages = IndexView(pages.data(), int64_t(pages.size()));
    engine.run(engine.plan(batch), cache.tensors);
    cache.check(text, now, kept);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// RoPE as a launch of its own over the cache's keys, attention without it: the same numbers.
TEST(Streaming, FusedIsWhatTwoStepsCompute) {
  constexpr int32_t kPage = 8, kPages = 4, kTokens = 29;
  const Stream text;
  Cache cache(kPages, kPage);
  std::vector<int32_t> pages{2, 0, 3, 1}, positions(kPages * kPage, 0), kept(kTokens);
  std::iota(kept.begin(), kept.end(), 0);
  for (int32_t t = 0; t < kTokens; ++t) {
    cache.write(text, t, pages[size_t(t / kPage)], t % kPage);
    positions[size_t(pages[size_t(t / kPage)] * kPage + t % kPage)] = t;
  }
  cache.q = text.q[kTokens - 1];
  cache.tensors.q.data = cache.q.data();
  const RopeSpec rope = cache.spec.variant.rope;
  apply_rope(Tensor::dense(cache.k.data(), DType::f32, {kPages * kPage, kKvHeads, kDim}), positions.data(), rope);
  const int32_t last = kTokens - 1;
  apply_rope(Tensor::dense(cache.q.data(), DType::f32, {1, kHeads, kDim}), &last, rope);
  AttentionSpec plain = cache.spec;
  plain.variant.rope = {};
  const int32_t qo_indptr[2] = {0, 1}, kv_len[1] = {kTokens}, list_indptr[2] = {0, kPages};
  Batch batch;
  batch.num_requests = 1;
  batch.qo_indptr = IndexView(qo_indptr, 2), batch.kv_len = IndexView(kv_len, 1), batch.list_indptr = IndexView(list_indptr, 2);
  batch.pages = cache.tensors.pages = IndexView(pages.data(), kPages);
  attention(plain, batch, cache.tensors, few_ctas());
  cache.check(text, kTokens - 1, kept);
}

}  // namespace
}  // namespace kvloom::test
