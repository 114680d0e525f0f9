// Who owns what for how long: plans that outlive engines, workspaces of the caller, engines in threads of their own.
#include "tests/support/step.h"

#include <gtest/gtest.h>

#include <optional>
#include <thread>

namespace kvloom::test {
namespace {

Step make_step(uint32_t seed, const std::vector<Request>& requests = {{1, 200}, {9, 70}, {1, 3}}) {
  Step s;
  s.spec = small_spec();
  s.seed = seed;
  s.requests = requests;
  s.make();
  return s;
}

EngineOptions one_thread(Policy policy = Policy::automatic) {
  EngineOptions o;
  o.threads = 1;
  o.num_ctas = 7;
  o.policy = policy;
  return o;
}

/// 64-byte aligned memory of exactly `bytes` (so that a sanitizer sees the byte behind it), between guard bytes of its own.
struct Memory {
  explicit Memory(int64_t bytes) : size(bytes), data(static_cast<char*>(::operator new(size_t(bytes), std::align_val_t(64)))) {}
  ~Memory() { ::operator delete(data, std::align_val_t(64)); }
  Memory(const Memory&) = delete;
  void fill(int byte) { std::memset(data, byte, size_t(size)); }

  int64_t size;
  char* data;
};

TEST(Lifetime, PlansOutliveTheirEngine) {
  Step s = make_step(1);
  std::optional<Engine> engine(std::in_place, s.spec, s.capacity(), one_thread());
  Plan a = engine->plan(s.batch);
  const Plan b = engine->plan(s.batch);
  { const Plan gone = engine->plan(s.batch); }  // rests in the engine
  const std::vector<char> bytes(b.bytes().begin(), b.bytes().end());
  engine.reset();
  EXPECT_EQ(std::vector<char>(a.bytes().begin(), a.bytes().end()), bytes);
  EXPECT_EQ(a.graph_key(), b.graph_key());
  EXPECT_EQ(a.total_tokens(), 11);
  std::thread([plan = std::move(a)] { EXPECT_GT(plan.view().items.size, 0); }).join();  // and end on other threads
}

TEST(Lifetime, PlansOfManyStepsAtOnce) {
  Step s = make_step(1), t = make_step(2, {{3, 50}, {1, 61}});
  Capacity capacity = s.capacity();
  capacity.max_kv_tokens = 1000;
  Engine engine(s.spec, capacity, one_thread());
  Plan a = engine.plan(s.batch), b = engine.plan(t.batch);
  engine.run(b, t.tensors);
  engine.run(a, s.tensors);
  expect_right(s);
  expect_right(t);
  a = engine.plan(t.batch);  // the first step's plan is replaced
  t.poison();
  engine.run(a, t.tensors);
  expect_right(t);
  Engine moved = std::move(engine);
  t.poison();
  moved.run(b, t.tensors);
  expect_right(t);
}

TEST(Lifetime, EqualStepsHaveEqualBytesWhateverCameBefore) {
  Step s = make_step(1), t = make_step(2, {{30, 300}, {1, 500}, {2, 60}});
  Capacity capacity = t.capacity();
  Engine engine(s.spec, capacity, one_thread());
  const auto bytes = [&](const Step& step) {
    const Plan plan = engine.plan(step.batch);
    return std::vector<char>(plan.bytes().begin(), plan.bytes().end());
  };
  const std::vector<char> fresh = bytes(s);
  const std::vector<char> large = bytes(t);
  EXPECT_EQ(bytes(s), fresh);
  EXPECT_EQ(bytes(t), large);
  EXPECT_NE(fresh, large);
  Engine other(s.spec, capacity, one_thread());
  const Plan plan = other.plan(s.batch);
  EXPECT_EQ(std::vector<char>(plan.bytes().begin(), plan.bytes().end()), fresh);
}

TEST(Lifetime, AFailedPlanLeavesTheOthers) {
  Step s = make_step(1);
  Engine engine(s.spec, s.capacity(), one_thread());
  Plan plan = engine.plan(s.batch);
  Step bad = make_step(1);
  bad.kv_len[0] = -4;
  for (int i = 0; i < 3; ++i) EXPECT_THROW(plan = engine.plan(bad.batch), Error);
  engine.run(plan, s.tensors);
  expect_right(s);
}

TEST(Lifetime, B79_WorkspaceSizeIsExact) {
  for (const Policy policy : {Policy::stream, Policy::fill, Policy::heap, Policy::fixed_split}) {
    Step s = make_step(3, {{1, 1500}, {40, 90}, {1, 700}});
    const EngineOptions options = one_thread(policy);
    const int64_t size = Engine::workspace_size(s.spec, s.capacity(), options);
    Memory memory(size);
    memory.fill(0xff);
    Engine engine(s.spec, s.capacity(), options, {memory.data, size});
    EXPECT_EQ(engine.workspace_bytes(), size);
    engine.run(engine.plan(s.batch), s.tensors);
    expect_right(s);
    try {
      Engine(s.spec, s.capacity(), options, {memory.data, size - 1});
      ADD_FAILURE() << "one byte fewer was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::mismatch);
      const std::string says = "got " + std::to_string(size - 1) + ", wanted " + std::to_string(size);
      EXPECT_NE(std::string(e.what()).find(says), std::string::npos) << e.what();
    }
  }
}

TEST(Lifetime, B80_OneWorkspaceForPathsThatAlternateWhateverItHolds) {
  const Policy policies[] = {Policy::stream, Policy::none, Policy::fill, Policy::fixed_split, Policy::heap};
  std::vector<Step> steps;
  int64_t size = 0;
  for (size_t i = 0; i < std::size(policies); ++i) {
    steps.push_back(make_step(uint32_t(i), {{1, 900}, {17, 40 + int32_t(i)}, {1, 30}}));
    size = std::max(size, Engine::workspace_size(steps[i].spec, steps[i].capacity(), one_thread(policies[i])));
  }
  Memory memory(size);
  memory.fill(0xff);
  std::vector<Engine> engines;
  std::vector<Plan> plans;
  for (size_t i = 0; i < steps.size(); ++i) {
    engines.emplace_back(steps[i].spec, steps[i].capacity(), one_thread(policies[i]), Workspace{memory.data, size});
    plans.push_back(engines[i].plan(steps[i].batch));
  }
  for (int round = 0; round < 4; ++round) {
    for (size_t i = 0; i < steps.size(); ++i) {
      if (round % 2 == 0) memory.fill(round == 0 ? 0xff : 0x7f);
      steps[i].poison();
      engines[i].run(plans[i], steps[i].tensors);
      expect_right(steps[i], std::to_string(i));
    }
  }
}

TEST(Lifetime, TheNumberOfThreadsNeverChangesABit) {
  Step s = make_step(4, {{1, 2000}, {60, 300}, {1, 40}, {1, 1}});
  std::vector<char> first;
  for (const int32_t threads : {1, 2, 3, 8, 0}) {
    EngineOptions options = one_thread();
    options.threads = threads;
    Engine engine(s.spec, s.capacity(), options);
    s.poison();
    engine.run(engine.plan(s.batch), s.tensors);
    if (first.empty()) first = s.o.bytes;
    EXPECT_EQ(s.o.bytes, first) << threads;
  }
  expect_right(s);
}

TEST(Lifetime, B103_EnginesInEightThreadsAreIndependent) {
  constexpr int kThreads = 8, kRounds = 60;
  std::vector<Step> serial;
  for (uint32_t t = 0; t < kThreads; ++t) {
    serial.push_back(make_step(10 + t, {{1, 60 + int32_t(t)}, {3, 20}}));
    Engine engine(serial[t].spec, serial[t].capacity(), one_thread());
    engine.run(engine.plan(serial[t].batch), serial[t].tensors);
  }
  std::vector<std::thread> threads;
  std::vector<int> wrong(kThreads, 0);
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Step own = make_step(10 + t, {{1, 60 + int32_t(t)}, {3, 20}});
      EngineOptions options = one_thread();
      if (t % 2) options.threads = 0;  // half of them share the process's threads
      Engine engine(own.spec, own.capacity(), options);
      for (int i = 0; i < kRounds; ++i) {
        own.poison();
        engine.run(engine.plan(own.batch), own.tensors);
        wrong[t] += own.o.bytes != serial[t].o.bytes || own.lse.bytes != serial[t].lse.bytes;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, std::vector<int>(kThreads, 0));
}

}  // namespace
}  // namespace kvloom::test
