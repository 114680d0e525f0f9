// RACE and DEV: threads within a run, and engines beside each other. Also run under ThreadSanitizer.
#include "tests/bugs/bug_case.h"

#include <atomic>
#include <memory>
#include <thread>

namespace kvloom::bugs {
namespace {

TEST(Race, B87_EmptyShortAndLongListsEnd) {
  const Watchdog watchdog(900);
  expect_right("B87");
}

TEST(Race, B88_RowsThatCrossSeveralCausalBlocks) { expect_right("B88"); }

TEST(Race, B89_LargeHeadsAreTheSameEveryTime) {
  expect_right("B89");
  CaseData data(bug_case("B89.dim_512"));
  EngineOptions options = with_policy(Policy::automatic, 64);
  options.threads = 4;
  Engine engine(data.what().spec, data.capacity(), options);
  const Plan plan = engine.plan(data.batch());
  const Output first = run_plan(engine, plan, data);
  for (int i = 0; i < 10; ++i) expect_same_bits(run_plan(engine, plan, data), first);
}

/// Runs of one case, again and again, on an engine of the thread's own: every one with the bits of a serial run.
void run_beside_others(const Case& c, int runs, const Output& serial, std::atomic<int>& ready, int threads, std::atomic<int>& wrong) {
  CaseData data(c);
  ++ready;
  while (ready < threads) std::this_thread::yield();  // everybody's first call at once
  Engine engine(c.spec, data.capacity(), with_policy(Policy::stream));
  for (int i = 0; i < runs; ++i) {
    const Output got = run_plan(engine, engine.plan(data.batch()), data);
    if (!same_bits(got.o, serial.o) || !same_bits(got.lse, serial.lse)) ++wrong;
  }
}

TEST(Device, B102_TwoStreamsInterleavedHaveTheBitsOfOne) {
  // Two engines in turn on one thread, a hundred times, with inputs of their own.
  CaseData a(bug_case("B45.two_empty_of_64")), b(bug_case("B76.speculative"));
  Engine engine_a(a.what().spec, a.capacity(), with_policy(Policy::stream)),
      engine_b(b.what().spec, b.capacity(), with_policy(Policy::stream));
  const Plan plan_a = engine_a.plan(a.batch()), plan_b = engine_b.plan(b.batch());
  const Output first_a = run_plan(engine_a, plan_a, a), first_b = run_plan(engine_b, plan_b, b);
  for (int i = 0; i < 20; ++i) {
    expect_same_bits(run_plan(engine_a, plan_a, a), first_a);
    expect_same_bits(run_plan(engine_b, plan_b, b), first_b);
  }
}

TEST(Device, B103_EnginesOfDifferentThreadsAreIndependent) {
  const std::vector<Case> cases{bug_case("B45.two_empty_of_64"), bug_case("B49.lse_layout"), bug_case("B82.scale_3"),
                                bug_case("B61.fused_qkv")};
  std::vector<Output> serial;
  for (const Case& c : cases) {
    CaseData data(c);
    serial.push_back(run_once(data, with_policy(Policy::stream)));
  }
  std::atomic<int> wrong{0}, ready{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] { run_beside_others(cases[size_t(t % 4)], 12, serial[size_t(t % 4)], ready, 8, wrong); });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

// A captured plan outlives the batch it came from, and two plans may be in flight: the old one is not spoiled by the new.
TEST(Mask, B28_AMaskOfAnEarlierPlanIsNotUsedLater) {
  Case masked;
  masked.seed = 28;
  masked.spec.num_qo_heads = 2;
  masked.spec.num_kv_heads = 1;
  masked.spec.head_dim_qk = masked.spec.head_dim_vo = 64;
  masked.spec.page_size = 4;
  masked.spec.variant.custom_mask = true;
  masked.mask = check::MaskKind::tree;
  masked.q_len = {4};
  masked.kv_len = {15};
  Case causal = masked;
  causal.mask = check::MaskKind::none;
  causal.spec.variant.custom_mask = false;
  causal.spec.variant.range.causal = true;
  CaseData a(masked), b(causal);
  const Output fresh_a = run_once(a, with_policy(Policy::stream)), fresh_b = run_once(b, with_policy(Policy::stream));
  Engine engine_a(masked.spec, a.capacity(), with_policy(Policy::stream)), engine_b(causal.spec, b.capacity(), with_policy(Policy::stream));
  const Plan plan_a = engine_a.plan(a.batch()), plan_b = engine_b.plan(b.batch());
  for (int i = 0; i < 2; ++i) {
    expect_same_bits(run_plan(engine_a, plan_a, a), fresh_a);
    expect_same_bits(run_plan(engine_b, plan_b, b), fresh_b);
  }
  // Two plans of one engine, with masks of different shape, run in turn.
  Case other = masked;
  other.q_len = {2};
  other.kv_len = {9};
  CaseData c(other);
  const Output fresh_c = run_once(c, with_policy(Policy::stream));
  Engine both(masked.spec, {1, 4, 15, 0, 0}, with_policy(Policy::stream));
  const Plan first = both.plan(a.batch()), second = both.plan(c.batch());
  for (int i = 0; i < 2; ++i) {
    expect_same_bits(run_plan(both, second, c), fresh_c);
    expect_same_bits(run_plan(both, first, a), fresh_a);
  }
}

TEST(Mask, B31_TheMaskIsReadWithinItsBytes) { expect_right("B31"); }  // the buffer ends at a page that faults

}  // namespace
}  // namespace kvloom::bugs
