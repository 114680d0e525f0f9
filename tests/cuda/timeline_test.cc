// Times of items on a GPU: every item once, in order, on the kernels of all families; and what asking for them changes and does not.
#include "tests/cuda/engine_fixture.h"
#include "tests/support/timeline.h"

namespace kvloom::test {
namespace {

using GpuTimeline = GpuEngine;
using CudaTimeline = CudaEngine;

EngineOptions timed_options(const char* kernel = nullptr) {
  EngineOptions o = cuda_options();
  o.timeline = true;
  o.kernel = kernel;
  return o;
}

struct Timed {
  TimelineLayout layout;
  std::vector<char> memory;
};

/// Runs `s` on `engine` and brings its times back.
Timed run_timed(Engine& engine, const Plan& plan, GpuStep& g) {
  Timed t{engine.timeline_layout(plan), {}};
  t.memory.resize(size_t(t.layout.bytes()));
  GpuBuffer there = put(t.memory);
  RunTensors tensors = g.tensors;
  tensors.timeline = there.data();
  engine.run(plan, tensors);
  gpu_synchronize(0);
  there.download(t.memory.data(), there.size());
  return t;
}

const std::vector<Request> kSteps[] = {
    {{1, 700}, {1, 90}, {2, 350}, {1, 1}},                        // few rows
    {{40, 300}, {130, 130}, {64, 500}},                           // many
    {{1, 900}, {40, 200}, {0, 30}, {3, 3}, {300, 300}, {1, 260}}  // both
};

TEST_F(GpuTimeline, EveryItemOnceAndInOrder) {
  gpu.add_kernel(gpu_spec(), true);
  for (const char* kernel : {"sm80", "sm90"}) {
    for (const Policy policy : {Policy::automatic, Policy::heap, Policy::none, Policy::fixed_split}) {
      for (const auto& requests : kSteps) {
        Step s = make_step(requests);
        EngineOptions options = timed_options(kernel);
        options.policy = policy;
        options.num_ctas = policy == Policy::heap ? 7 : 0;
        Engine engine(s.spec, s.capacity(), options);
        GpuStep g(s);
        g.poison();
        const Plan plan = engine.plan(s.batch);
        const Timed t = run_timed(engine, plan, g);
        const std::string what = std::string(kernel) + ", " + name_of(policy) + ", " + std::to_string(requests.size()) + " requests";
        EXPECT_EQ(timeline_fault(plan.view(), t.layout, t.memory.data()), "") << what;
        expect_device_right(g, s, what);
      }
    }
  }
}

// Where CTAs work for tens of microseconds, nearly all of that is items. A chip's few CTAs here: each has as much to do as of a large step all have.
TEST_F(GpuTimeline, ItemsAreWhatTimeGoesInto) {
  if (gpu.is_fake()) GTEST_SKIP() << "wants the times of a GPU; api/timeline_test.cc has the CPU's";
  const std::vector<std::pair<const char*, std::vector<Request>>> steps = {
      {"decode", std::vector<Request>(8, {1, 20000})},
      {"prefill", {{2000, 2000}, {1500, 4000}}},
      {"mixed", {{1, 20000}, {1, 15000}, {1, 9000}, {1, 20000}, {1500, 2500}, {700, 4000}}}};
  for (const char* kernel : {"sm80", "sm90"}) {
    if (kernel == std::string("sm90") && gpus()[0].arch != "sm_90a") continue;
    for (const auto& [name, requests] : steps) {
      Step s = make_step(requests);
      EngineOptions options = timed_options(kernel);
      options.num_ctas = 8;
      Engine engine(s.spec, s.capacity(), options);
      GpuStep g(s);
      const Plan plan = engine.plan(s.batch);
      run_timed(engine, plan, g);  // the kernel is compiled and loaded, and has run
      const Timed t = run_timed(engine, plan, g);
      const std::string what = std::string(kernel) + ", " + name;
      ASSERT_EQ(timeline_fault(plan.view(), t.layout, t.memory.data()), "") << what;
      for (const CtaTimes& cta : view_timeline(t.memory.data(), t.layout).ctas) EXPECT_GE(cta.end - cta.begin, 20'000u) << what << ": ns of a CTA";
      EXPECT_GE(timeline_coverage(plan.view(), t.layout, t.memory.data()), 0.9) << what;
    }
  }
}

// CTAs of a cluster have times of their own, side by side.
TEST_F(CudaTimeline, ClustersOfTwo) {
  Step s = make_step(kSteps[1]);
  Engine engine(s.spec, s.capacity(), timed_options("sm90"));
  GpuStep g(s);
  const Plan plan = engine.plan(s.batch);
  EXPECT_EQ(engine.timeline_layout(plan).cluster, 2);
  const Timed t = run_timed(engine, plan, g);
  EXPECT_EQ(gpu.last_entry(), "attend_compute");
  EXPECT_EQ(t.layout.num_ctas, 2 * plan.view().header->num_ctas);
  EXPECT_EQ(timeline_fault(plan.view(), t.layout, t.memory.data()), "");
}

// Nobody asks: the same bits, and nothing is written anywhere.
TEST_F(GpuTimeline, SameBitsWithAndWithout) {
  for (const auto& requests : kSteps) {
    Step s = make_step(requests);
    GpuStep g(s);
    EngineOptions options = cuda_options();
    std::vector<std::vector<char>> bits;
    for (const bool timeline : {false, true}) {
      options.timeline = timeline;
      options.num_ctas = 5;
      Engine engine(s.spec, s.capacity(), options);
      const Plan plan = engine.plan(s.batch);
      g.poison();
      engine.run(plan, g.tensors);
      bits.push_back(bits_of(g, s));
      if (!timeline) continue;
      g.poison();
      run_timed(engine, plan, g);
      bits.push_back(bits_of(g, s));
    }
    EXPECT_EQ(bits[0], bits[1]);
    EXPECT_EQ(bits[1], bits[2]);
  }
}

TEST_F(GpuTimeline, Refusals) {
  Step s = make_step({{1, 100}});
  GpuStep g(s);
  GpuBuffer memory(0, 1 << 16);
  RunTensors tensors = g.tensors;
  tensors.timeline = memory.data();
  Engine plain(s.spec, s.capacity(), cuda_options());
  EXPECT_NE(error_of([&] { plain.run(plain.plan(s.batch), tensors); }, ErrorCode::invalid_argument).find("options.timeline = true"), std::string::npos);
  Engine engine(s.spec, s.capacity(), timed_options());
  const Plan plan = engine.plan(s.batch);
  tensors.timeline = memory.data() + 4;
  EXPECT_NE(error_of([&] { engine.run(plan, tensors); }, ErrorCode::invalid_argument).find("not a multiple of 8 bytes"), std::string::npos);
  std::vector<uint64_t> on_the_host(8192);
  tensors.timeline = on_the_host.data();
  EXPECT_NE(error_of([&] { engine.run(plan, tensors); }, ErrorCode::invalid_argument).find("run: timeline"), std::string::npos);
  error_of([&] { plain.timeline_layout(plan); }, ErrorCode::mismatch);
}

// Of a plan that only the device has, nobody can say how many items it has.
TEST_F(GpuTimeline, WhatTheDeviceHasMadeIsCheckedFirst) {
  gpu.add_program(jit::plan_program());
  Step s = make_step({{1, 300}, {1, 70}});
  EngineOptions options = timed_options();
  options.policy = Policy::stream;
  Engine engine(s.spec, large(), options);
  GpuStep g(s);
  const GpuBuffer qo_indptr = put(s.qo_indptr), kv_len = put(s.kv_len), list_indptr = put(s.list_indptr);
  DeviceBatch b;
  b.num_requests = 2;
  b.num_tokens = 2;
  b.max_q_len = 1;
  b.qo_indptr = IndexView(qo_indptr.as<int32_t>(), 3);
  b.kv_len = IndexView(kv_len.as<int32_t>(), 2);
  b.list_indptr = IndexView(list_indptr.as<int64_t>(), 3);
  b.pages = g.tensors.pages;
  Plan plan = engine.plan_on_device(b);
  EXPECT_NE(error_of([&] { engine.timeline_layout(plan); }, ErrorCode::invalid_argument).find("call check(plan, stream)"), std::string::npos);
  engine.check(plan);
  const Timed t = run_timed(engine, plan, g);
  EXPECT_EQ(timeline_fault(plan.view(), t.layout, t.memory.data()), "");
  expect_device_right(g, s);
}

}  // namespace
}  // namespace kvloom::test
