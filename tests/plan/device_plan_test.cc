// The device's planner, phase by phase on the host, against the host's: byte by byte.
#include "device_steps.h"
#include "serial_block.h"
#include "tests/support/errors.h"

#include <gtest/gtest.h>

namespace kvloom::test {
namespace {

/// A step planned both ways.
struct Both {
  plan::Planner planner;
  PlanBuffer want;
  std::vector<char> got;
  std::vector<uint32_t> counters;
  std::vector<CtaStart> starts;
  plan::PlanVerdict verdict{};

  explicit Both(const DeviceStep& s)
      : planner(s.spec, s.capacity, s.config),
        want(planner.layout().plan_bytes),
        got(size_t(want.bytes), char(kUntouched)),
        counters(size_t(planner.layout().max_units), 0xa5a5a5a5u),
        starts(size_t(s.config.num_ctas)) {}
  void on_device(const DeviceStep& s) {
    plan::DeviceArgs a = device_args_of(s, planner.layout(), s.b.batch);
    a.plan = got.data();
    a.counters = counters.data();
    a.starts = starts.data();
    a.verdict = &verdict;
    plan_serially(a);
    for (const CtaStart& start : starts) EXPECT_EQ(start.items, -1);  // of the step before, whatever became of this one
  }
  const PlanHeader& header() const { return *reinterpret_cast<const PlanHeader*>(got.data()); }
};

enum Way { nothing, one_each, longest_first, cut, kWays };
Way way_of(const PlanView& p, const SchedulerConfig& config) {
  if (p.items.empty()) return nothing;
  if (p.units.size > 0) return cut;
  return p.items.size <= config.num_ctas ? one_each : longest_first;
}

TEST(DevicePlan, TheHostsBytes) {
  const char* const wanted = std::getenv("KVLOOM_FUZZ_CASES");
  const uint64_t cases = wanted ? std::strtoull(wanted, nullptr, 10) : 10000;
  int ways[kWays] = {}, classes[4] = {}, one_tile[2] = {};
  for (uint64_t seed = 0; seed < cases; ++seed) {
    DeviceStep s;
    make_device_step(seed, s);
    Both both(s);
    both.planner.plan(s.b.batch, both.want.data, both.want.bytes);
    both.on_device(s);
    ASSERT_EQ(device_plan_fault(both.got, both.counters, both.want), "") << "seed " << seed;
    ++ways[way_of(view_plan(both.want.data), s.config)];
    ++classes[both.planner.uses_class(0) + 2 * both.planner.uses_class(1)];
    ++one_tile[device_args_of(s, both.planner.layout(), s.b.batch).one_tile];
  }
  for (int w = 0; w < kWays; ++w) EXPECT_GT(ways[w], int(cases / 100)) << w;
  for (int c = 0; c < 4; ++c) EXPECT_GT(classes[c], int(cases / 100)) << c;
  for (int o = 0; o < 2; ++o) EXPECT_GT(one_tile[o], int(cases / 5)) << o;
}

/// One thing of a step made wrong: what the host refuses, or a step that is still sound (no such array, no such request).
void spoil(Random& r, DeviceStep& s) {
  TestBatch& b = s.b;
  if (b.kv_len.empty()) return;
  const size_t i = size_t(r.in(0, int32_t(b.kv_len.size()) - 1)), request = i * (b.qo_indptr.size() - 1) / b.kv_len.size();
  s.capacity.max_kv_tokens = 0;  // one thing at a time: which of two is named first is not said
  switch (r.in(0, 9)) {
    case 0: b.kv_len[i] = -r.in(1, 1000); break;
    case 1: b.kv_len[i] = r.of({(1 << 29) + 1, INT32_MAX, 1 << 29}); break;
    case 2: b.qo_indptr[request + 1] -= r.of({1, 50, 1 << 30}); break;
    case 3: b.qo_indptr[0] = r.of({-1, 1}); break;
    case 4: b.list_indptr[i] = r.of({-1, int32_t(b.list_indptr[i]) + 1, INT32_MAX}); break;
    case 5:
      if (!b.pages.empty()) b.pages.resize(b.pages.size() - 1);
      break;
    case 6:
      for (int32_t kv : b.kv_len) s.capacity.max_kv_tokens += kv;
      s.capacity.max_kv_tokens = std::max<int64_t>(1, s.capacity.max_kv_tokens - 1);
      break;
    case 7: b.kv_len[i] += r.in(1, 300); break;
    case 8:
      if (!b.q_pos0.empty()) b.q_pos0[request] = r.of({(1 << 29) + 1, -(1 << 29) - 1, INT32_MIN, 1 << 29});
      break;
    case 9:
      if (!b.prefix.empty()) b.prefix[request] = -1;
      break;
  }
}

TEST(DevicePlan, RefusesWhatTheHostRefuses) {
  int refused[2] = {};
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    DeviceStep s;
    make_device_step(seed, s);
    Random r(seed ^ 0x5eed);
    spoil(r, s);
    s.bind();
    s.declared.max_q_len = int32_t(s.capacity.max_query_tokens);  // of the device alone
    s.declared.num_tokens = s.capacity.max_query_tokens;
    Both both(s);
    int host = 0;
    std::string words;
    try {
      both.planner.plan(s.b.batch, both.want.data, both.want.bytes);
    } catch (const Error& e) {
      host = e.code() == ErrorCode::over_capacity ? 1 : 2;
      words = e.what();
    }
    both.on_device(s);
    const PlanHeader& h = both.header();
    ASSERT_EQ(int(h.status), host) << "seed " << seed << ": " << words << "; fault " << int(both.verdict.fault) << " of request " << both.verdict.request;
    if (host == 0) {
      ASSERT_EQ(device_plan_fault(both.got, both.counters, both.want), "") << "seed " << seed;
      continue;
    }
    ++refused[host - 1];
    EXPECT_NE(error_of([&] { plan::check_verdict(both.verdict); }, host == 1 ? ErrorCode::over_capacity : ErrorCode::invalid_argument), "");
    EXPECT_EQ(h.total_tokens, s.declared.num_tokens);
    EXPECT_EQ(h.num_items, 0);
    const PlanView view = view_plan(both.got.data());
    for (int32_t indptr : view.cta_indptr) ASSERT_EQ(indptr, 0);
  }
  EXPECT_GT(refused[0], 50);
  EXPECT_GT(refused[1], 500);
}

DeviceStep plain_step(std::vector<int32_t> q, std::vector<int32_t> kv, int32_t ctas = 7) {
  DeviceStep s;
  s.spec = small_spec(8, 2);
  s.config = gpu_config(ctas, Policy::stream);
  static_cast<TestBatch&>(s.b) = TestBatch(q, kv, s.spec);
  s.bind();
  s.capacity = capacity_of(s.b);
  s.declared = {int32_t(q.size()), *std::max_element(q.begin(), q.end()), s.b.tokens()};
  return s;
}

TEST(DevicePlan, AtCapacityAndOneBeyond) {
  const DeviceStep fits = plain_step({1, 3, 0, 2}, {100, 40, 7, 900});
  const auto refusal = [](const DeviceStep& s) {
    Both both(s);
    both.on_device(s);
    if (both.header().status == PlanStatus::ok) return std::string();
    return error_of([&] { plan::check_verdict(both.verdict); }, ErrorCode::over_capacity);
  };
  EXPECT_EQ(refusal(fits), "");
  DeviceStep s = fits;
  s.bind();
  --s.declared.num_tokens;
  EXPECT_TRUE(has(refusal(s), "query tokens: got 6, wanted at most DeviceBatch.num_tokens = 5")) << refusal(s);
  ++s.declared.num_tokens;
  --s.declared.max_q_len;
  EXPECT_TRUE(has(refusal(s), "request 1: got 3 query tokens, wanted at most DeviceBatch.max_q_len = 2")) << refusal(s);
  ++s.declared.max_q_len;
  --s.capacity.max_kv_tokens;
  EXPECT_TRUE(has(refusal(s), "KV tokens: got 1047, wanted at most Capacity.max_kv_tokens = 1046")) << refusal(s);
  ++s.declared.num_requests;
  EXPECT_TRUE(has(error_of([&] { refusal(s); }, ErrorCode::over_capacity), "num_requests: got 5, wanted at most Capacity.max_requests = 4"));
}

TEST(DevicePlan, RaggedListsEndWithKAndV) {
  DeviceStep s = plain_step({1, 2}, {100, 50});
  s.spec.storage = Storage::ragged;
  s.b.list_indptr = {0, 100, 150};
  s.b.pages.clear();
  s.bind();
  s.ragged_tokens = 150;
  Both fits(s);
  fits.on_device(s);
  EXPECT_EQ(fits.header().status, PlanStatus::ok);
  s.ragged_tokens = 149;
  Both both(s);
  both.on_device(s);
  EXPECT_TRUE(has(error_of([&] { plan::check_verdict(both.verdict); }), "end of the list: request 1: got 150, wanted at most 149"));
}

TEST(DevicePlan, NamesTheFirstFault) {
  DeviceStep s = plain_step({1, 1, 1, 1}, {100, 100, 100, 100});
  s.b.kv_len[3] = -4;
  s.b.kv_len[1] = -3;
  s.bind();
  Both both(s);
  both.on_device(s);
  EXPECT_EQ(both.header().status, PlanStatus::malformed);
  EXPECT_TRUE(has(error_of([&] { plan::check_verdict(both.verdict); }), "kv_len: request 1: got -3, wanted 0 to"));
}

TEST(DevicePlan, WhatADeviceDoesNotPlan) {
  const AttentionSpec spec = small_spec(8, 2);
  EXPECT_EQ(plan::device_refusal(spec, gpu_config(132, Policy::stream)), "");
  EXPECT_TRUE(has(plan::device_refusal(spec, gpu_config(132, Policy::automatic)), "policy: got auto, wanted stream"));
  EXPECT_TRUE(has(plan::device_refusal(spec, gpu_config(513, Policy::stream)), "num_ctas: got 513, wanted at most 512"));
  AttentionSpec masked = spec;
  masked.variant.custom_mask = true;
  EXPECT_TRUE(has(plan::device_refusal(masked, gpu_config(132, Policy::stream)), "custom_mask"));
}

}  // namespace
}  // namespace kvloom::test
