// Times of items on the CPU: every item once and in order under every policy, and nearly all of what a CTA's time goes into.
#include "tests/support/errors.h"
#include "tests/support/step.h"
#include "tests/support/timeline.h"

#include <optional>

namespace kvloom::test {
namespace {

struct TimedRun {
  explicit TimedRun(std::vector<Request> requests, EngineOptions options) {
    step.spec = small_spec();
    step.requests = std::move(requests);
    step.make();
    options.timeline = true;
    engine.emplace(step.spec, step.capacity(), options);
    plan.emplace(engine->plan(step.batch));
    layout = engine->timeline_layout(*plan);
    memory.resize(size_t(layout.bytes() / 8));
    step.tensors.timeline = memory.data();
    step.poison();
    engine->run(*plan, step.tensors);
  }
  std::string fault() const { return timeline_fault(plan->view(), layout, memory.data()); }
  double coverage() const { return timeline_coverage(plan->view(), layout, memory.data()); }
  Step step;
  std::optional<Engine> engine;
  std::optional<Plan> plan;
  TimelineLayout layout;
  std::vector<uint64_t> memory;
};

TEST(Timeline, EveryItemOnceAndInOrder) {
  for (const Policy policy : {Policy::none, Policy::heap, Policy::stream, Policy::fill, Policy::fixed_split, Policy::automatic}) {
    for (const int32_t threads : {1, 3}) {
      EngineOptions options;
      options.policy = policy;
      options.threads = threads;
      options.num_ctas = threads == 1 ? 7 : 0;
      const TimedRun run({{1, 700}, {40, 90}, {2, 350}, {1, 1}, {0, 20}, {130, 200}}, options);
      EXPECT_EQ(run.fault(), "") << name_of(policy) << ", " << threads << " threads";
      EXPECT_EQ(run.layout.cluster, 1);
      for (const CtaTimes& cta : view_timeline(run.memory.data(), run.layout).ctas) EXPECT_LT(cta.place, threads);
      expect_right(run.step, name_of(policy));
    }
  }
}

// One thread: whatever interrupts it interrupts an item, or a CTA as a whole.
TEST(Timeline, ItemsAreWhatTimeGoesInto) {
  EngineOptions options;
  options.threads = 1;
  const TimedRun run({{1, 20000}, {300, 4000}, {1, 9000}, {1, 12000}}, options);
  EXPECT_EQ(run.fault(), "");
  EXPECT_GE(run.coverage(), 0.9);
}

TEST(Timeline, EmptySteps) {
  const TimedRun nothing({{0, 40}}, {});
  EXPECT_EQ(nothing.layout.num_items, 0);
  const TimedRun no_keys({{3, 0}}, {});
  EXPECT_EQ(no_keys.layout.num_items, no_keys.plan->view().header->num_items);
  EXPECT_EQ(no_keys.fault(), "");
}

TEST(Timeline, OfAnotherEngineAndMisaligned) {
  EngineOptions options;
  options.threads = 1;
  TimedRun run({{1, 100}}, options);
  Engine other(run.step.spec, run.step.capacity(), options);
  error_of([&] { (void)other.timeline_layout(*run.plan); }, ErrorCode::mismatch);
  run.step.tensors.timeline = reinterpret_cast<char*>(run.memory.data()) + 4;
  EXPECT_TRUE(has(error_of([&] { run.engine->run(*run.plan, run.step.tensors); }), "run: timeline: got an address that is not a multiple of 8 bytes"));
}

}  // namespace
}  // namespace kvloom::test
