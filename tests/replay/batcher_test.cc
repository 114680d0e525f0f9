// Continuous batching against a shadow of the KV pool: every slot of every page holds the number of the token that was written there, so a
// page given to two owners, a copy missed, a wrong prefix hit or a token left out shows as a wrong number.
#include "cli/replay/batcher.h"

#include "cli/replay/synthetic_trace.h"

#include <gtest/gtest.h>

#include <set>

namespace kvloom::replay {
namespace {

constexpr uint64_t kUndefined = ~uint64_t(0);

struct Outcome {
  BatchCounts counts;
  std::vector<Rejected> rejected;
  int64_t steps = 0;
  int64_t widest = 0;  // most sequences in a step
  int64_t arrived = 0;
};

class Shadow {
 public:
  Shadow(int64_t pages, int32_t page_size) : page_size_(page_size), slots_(size_t(pages * page_size), kUndefined) {}

  void apply(const std::vector<PageEvent>& events) {
    for (const PageEvent& e : events) {
      for (int32_t i = 0; i < page_size_; ++i) at(e.page, i) = e.from < 0 ? kUndefined : at(e.from, i);
    }
  }

  void write(const Batcher& batcher, const Slice& slice) {
    const Sequence& s = batcher.sequences()[size_t(slice.sequence)];
    for (int64_t pos = slice.kv_len - slice.q_len; pos < slice.kv_len; ++pos) {
      uint64_t& slot = at(s.pages[size_t(pos / page_size_)], int32_t(pos % page_size_));
      slot = batcher.content(s.request).token(pos, s.sample);
    }
  }

  /// What the slice's sequence will read is what it has.
  void verify(const Batcher& batcher, const Slice& slice) {
    const Sequence& s = batcher.sequences()[size_t(slice.sequence)];
    ASSERT_GE(int64_t(s.pages.size()) * page_size_, slice.kv_len);
    for (int64_t pos = 0; pos < slice.kv_len; ++pos) {
      ASSERT_EQ(at(s.pages[size_t(pos / page_size_)], int32_t(pos % page_size_)), batcher.content(s.request).token(pos, s.sample))
          << "request " << s.request << " sample " << s.sample << " position " << pos;
    }
  }

 private:
  uint64_t& at(int32_t page, int32_t slot) { return slots_[size_t(int64_t(page) * page_size_ + slot)]; }
  int32_t page_size_;
  std::vector<uint64_t> slots_;
};

void run(const BatchOptions& options, const std::vector<TraceRequest>& trace, int64_t pool_pages, Outcome& out) {
  PageAllocator pages(pool_pages);
  RadixTree cache(pages);
  Batcher batcher(options, trace, pages, cache);
  Shadow shadow(pool_pages, options.page_size);
  int64_t now = 0, expected_tokens = 0;
  for (batcher.arrive(now); !batcher.done(); batcher.arrive(now)) {
    if (batcher.idle()) {
      now = batcher.next_arrival_ns();
      continue;
    }
    const Step& step = batcher.schedule();
    ASSERT_GE(step.tokens, 1);
    ASSERT_LE(step.tokens, options.token_budget);
    ASSERT_LE(int64_t(step.slices.size()), options.max_batch);
    shadow.apply(step.page_events);
    std::set<int32_t> once;
    int64_t tokens = 0;
    for (const Slice& slice : step.slices) {
      ASSERT_TRUE(once.insert(slice.sequence).second) << "a sequence twice in one step";
      ASSERT_GE(slice.q_len, 1);
      ASSERT_EQ(slice.kv_len - slice.q_len, batcher.sequences()[size_t(slice.sequence)].computed);
      tokens += slice.q_len;
      shadow.write(batcher, slice);
    }
    ASSERT_EQ(tokens, step.tokens);
    expected_tokens += tokens;
    for (const Slice& slice : step.slices) shadow.verify(batcher, slice);
    if (testing::Test::HasFatalFailure()) return;
    out.widest = std::max(out.widest, int64_t(step.slices.size()));
    batcher.commit();
    ASSERT_EQ(cache.check(), "");
    ++out.steps;
    now += 5'000'000;
  }
  out.counts = batcher.counts();
  out.rejected = batcher.rejected();
  out.arrived = batcher.arrived();
  ASSERT_EQ(out.counts.tokens, expected_tokens);
  // Every token of every finished sequence was computed once, or found.
  int64_t owed = 0;
  std::set<int64_t> rejected_lines;
  for (const Rejected& r : out.rejected) rejected_lines.insert(r.line);
  for (const TraceRequest& r : trace) {
    if (!rejected_lines.count(r.line)) owed += options.samples * (r.prompt_tokens + std::max<int64_t>(r.output_tokens - 1, 0));
  }
  EXPECT_EQ(out.counts.tokens - out.counts.recomputed + out.counts.hit_tokens, owed);
  EXPECT_EQ(out.counts.finished, options.samples * int64_t(trace.size() - out.rejected.size()));
  // Nobody holds a page any more but the cache, and the cache lets go of everything.
  EXPECT_EQ(pages.free_pages() + cache.cached_pages(), pool_pages);
  EXPECT_EQ(cache.evictable_pages(), cache.cached_pages());
  cache.evict(pool_pages);
  EXPECT_EQ(pages.free_pages(), pool_pages);
}

std::vector<TraceRequest> small_trace(uint64_t seed, int64_t requests, int32_t shared_percent) {
  SyntheticOptions options;
  options.seed = seed;
  options.requests = requests;
  options.median_prompt = 60;
  options.median_output = 12;
  options.requests_per_second = 60;
  options.shared_percent = shared_percent;
  return synthetic_trace(options);
}

TraceRequest request(int64_t line, int64_t arrival_ms, int64_t prompt, int64_t output, std::vector<uint64_t> blocks = {}) {
  TraceRequest r;
  r.line = line;
  r.arrival_ns = arrival_ms * 1'000'000;
  r.prompt_tokens = prompt;
  r.output_tokens = output;
  r.blocks = std::move(blocks);
  r.block_tokens = 32;
  return r;
}

TEST(Batcher, OneRequestTakesItsChunksAndThenOneTokenAStep) {
  BatchOptions options;
  options.token_budget = 64;
  Outcome out;
  run(options, {request(1, 0, 150, 5)}, 100, out);
  EXPECT_EQ(out.steps, 3 + 4);  // 64 + 64 + 22, whose last token brings the first of five; the fifth is never computed
  EXPECT_EQ(out.counts.tokens, 154);
  EXPECT_EQ(out.counts.recomputed, 0);
}

TEST(Batcher, RequestsWithoutOutputOnlyPrefill) {
  Outcome out;
  run(BatchOptions{}, {request(1, 0, 33, 0), request(2, 0, 1, 1)}, 100, out);
  EXPECT_EQ(out.steps, 1);
  EXPECT_EQ(out.counts.tokens, 34);
}

TEST(Batcher, AnEmptyTraceIsDoneAtOnce) {
  Outcome out;
  run(BatchOptions{}, {}, 4, out);
  EXPECT_EQ(out.steps, 0);
}

TEST(Batcher, EqualPrefixesAreComputedOnce) {
  BatchOptions options;
  Outcome out;
  // 96 tokens in 3 blocks of 32; the second request agrees in the first two blocks, the third in everything.
  run(options, {request(1, 0, 96, 4, {7, 8, 9}), request(2, 100, 96, 4, {7, 8, 10}), request(3, 200, 96, 4, {7, 8, 9})}, 100, out);
  EXPECT_EQ(out.counts.hit_tokens, 64 + 80);  // never the last token: its page is computed again
  EXPECT_EQ(out.counts.prompt_tokens, 288);
  Outcome off;
  options.prefix_cache = false;
  run(options, {request(1, 0, 96, 4, {7, 8, 9}), request(2, 100, 96, 4, {7, 8, 10})}, 100, off);
  EXPECT_EQ(off.counts.hit_tokens, 0);
}

TEST(Batcher, TwinsThatPrefillTogetherEndOnTheSamePages) {
  Outcome out;
  BatchOptions options;
  options.token_budget = 512;
  run(options, {request(1, 0, 96, 40, {7, 8, 9}), request(2, 0, 96, 40, {7, 8, 9})}, 15, out);  // 2 x 9 pages would not fit
  EXPECT_EQ(out.counts.preempted, 0);
  EXPECT_EQ(out.counts.hit_tokens, 0);
}

TEST(Batcher, BlocksThatDoNotFallOnPagesStillShare) {
  BatchOptions options;
  options.page_size = 7;
  Outcome out;
  run(options, {request(1, 0, 96, 4, {7, 8, 9}), request(2, 100, 96, 4, {7, 8, 10})}, 100, out);
  EXPECT_EQ(out.counts.hit_tokens, 63);  // nine pages of seven lie within the two equal blocks
}

TEST(Batcher, SamplesShareThePromptAndCopyItsLastPage) {
  BatchOptions options;
  options.samples = 4;
  Outcome out;
  run(options, {request(1, 0, 100, 30)}, 100, out);
  EXPECT_EQ(out.counts.tokens, 100 + 4 * 29);
  EXPECT_EQ(out.counts.hit_tokens, 300);
  EXPECT_EQ(out.counts.copied_pages, 3);  // the last holder writes into the original
  EXPECT_EQ(out.widest, 4);
}

TEST(Batcher, APoolTooSmallForOneRequestRejectsItAndGoesOn) {
  Outcome out;
  run(BatchOptions{}, {request(2, 0, 30, 4), request(3, 1, 60, 6), request(4, 2, 60, 5), request(5, 3, 9000, 1)}, 4, out);
  ASSERT_EQ(out.rejected.size(), 2u);
  EXPECT_EQ(out.rejected[0].line, 3);
  EXPECT_EQ(out.rejected[0].tokens, 65);  // 60 + 6 - 1: one more than four pages hold
  EXPECT_EQ(out.rejected[0].pages, 5);
  EXPECT_EQ(out.rejected[1].line, 5);
  EXPECT_EQ(out.counts.finished, 2);
}

TEST(Batcher, AFullPoolPreemptsTheNewestAndComputesItAgain) {
  Outcome out;
  run(BatchOptions{}, {request(1, 0, 30, 60), request(2, 0, 30, 60)}, 8, out);  // both grow to 6 pages
  EXPECT_GE(out.counts.preempted, 1);
  EXPECT_GE(out.counts.recomputed, 30);
  EXPECT_EQ(out.counts.finished, 2);
}

struct Pressure {
  int64_t pool_pages;
  int32_t page_size, max_batch, samples, shared_percent;
  int64_t budget;
};

class BatcherProperty : public testing::TestWithParam<Pressure> {};

TEST_P(BatcherProperty, EveryTokenIsComputedOnceOnPagesThatNobodyElseWrites) {
  const Pressure& p = GetParam();
  int64_t preempted = 0;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    BatchOptions options;
    options.token_budget = p.budget;
    options.max_batch = p.max_batch;
    options.page_size = p.page_size;
    options.samples = p.samples;
    Outcome out;
    run(options, small_trace(seed, 40, p.shared_percent), p.pool_pages, out);
    if (HasFatalFailure()) return;
    EXPECT_EQ(out.arrived, 40);
    preempted += out.counts.preempted;
  }
  if (p.pool_pages * p.page_size < 2000) {
    EXPECT_GT(preempted, 0) << "a pool this small should preempt";
  } else {
    EXPECT_EQ(preempted, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Loads, BatcherProperty,
                         testing::Values(Pressure{100'000, 16, 256, 1, 50, 2048}, Pressure{80, 16, 256, 1, 50, 2048},
                                         Pressure{30, 16, 8, 1, 0, 128}, Pressure{60, 16, 256, 3, 70, 256},
                                         Pressure{1000, 1, 32, 1, 60, 100}, Pressure{900, 1, 64, 2, 60, 64},
                                         Pressure{130, 7, 64, 2, 90, 33}, Pressure{40'000, 16, 64, 4, 50, 512}));

}  // namespace
}  // namespace kvloom::replay
