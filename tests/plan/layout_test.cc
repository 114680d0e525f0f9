// Bounds: a plan needs exactly the bytes that its layout names, and no batch within the capacity needs more.
#include "kvloom/plan/validate.h"
#include "kvloom/support/error.h"
#include "random_batches.h"

#include <gtest/gtest.h>

namespace kvloom {
namespace {

using test::capacity_of;
using test::gpu_config;
using test::Planned;
using test::small_spec;
using test::TestBatch;

/// The error that planning throws, or a test failure.
template <class F>
std::pair<ErrorCode, std::string> error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return {e.code(), e.what()};
  }
  return {ErrorCode::internal, "no error"};
}

#define EXPECT_REFUSED(wanted_code, wanted_text, statement)       \
  do {                                                            \
    const auto [code, text] = error_of([&] { statement; });       \
    EXPECT_EQ(code, ErrorCode::wanted_code) << text;              \
    EXPECT_NE(text.find(wanted_text), std::string::npos) << text; \
  } while (false)

TEST(Layout, BufferOfExactlyTheNamedBytes) {  // B79
  const AttentionSpec spec = small_spec(8, 2);
  TestBatch b({1, 5, 40}, {700, 5, 90}, spec);
  plan::Planner planner(spec, capacity_of(b), gpu_config(7, Policy::automatic));
  const int64_t bytes = planner.layout().plan_bytes;
  const test::PlanBuffer buffer(bytes);
  planner.plan(b.batch, buffer.data, bytes);
  EXPECT_EQ(plan::validate_plan(buffer.data, bytes, spec, true), "");
  EXPECT_REFUSED(invalid_argument, std::to_string(bytes - 1), planner.plan(b.batch, buffer.data, bytes - 1));
  EXPECT_REFUSED(invalid_argument, "64-byte aligned", planner.plan(b.batch, static_cast<char*>(buffer.data) + 4, bytes));
  EXPECT_REFUSED(invalid_argument, "buffer", planner.plan(b.batch, nullptr, bytes));
}

TEST(Layout, NothingIsWrittenOnError) {
  const AttentionSpec spec = small_spec(8, 2);
  TestBatch b({1, 1}, {50, 60}, spec);
  plan::Planner planner(spec, capacity_of(b), gpu_config(7, Policy::stream));
  const test::PlanBuffer buffer(planner.layout().plan_bytes);
  std::memset(buffer.data, 0xab, size_t(buffer.bytes));
  b.kv_len[1] = -3;
  EXPECT_THROW(planner.plan(b.batch, buffer.data, buffer.bytes), Error);
  const auto* bytes = static_cast<const unsigned char*>(buffer.data);
  EXPECT_TRUE(std::all_of(bytes, bytes + buffer.bytes, [](unsigned char c) { return c == 0xab; }));
}

TEST(Layout, EachLimitOfTheCapacity) {
  const AttentionSpec spec = small_spec(8, 2);
  TestBatch b({2, 3}, {50, 60}, spec);
  auto plan_with = [&](Capacity c) { const Planned p(spec, c, gpu_config(7, Policy::stream), b.batch); };
  const Capacity fits = capacity_of(b);
  plan_with(fits);
  Capacity c = fits;
  c.max_requests = 1;
  EXPECT_REFUSED(over_capacity, "requests: got 2, wanted at most Capacity.max_requests = 1", plan_with(c));
  c = fits;
  c.max_query_tokens = 4;
  EXPECT_REFUSED(over_capacity, "query tokens: got 5, wanted at most Capacity.max_query_tokens = 4", plan_with(c));
  c = fits;
  c.max_kv_tokens = 109;
  EXPECT_REFUSED(over_capacity, "KV tokens: got 110, wanted at most Capacity.max_kv_tokens = 109", plan_with(c));
  c = fits;
  c.max_groups = 1;
  EXPECT_REFUSED(over_capacity, "row groups: got 2, wanted at most 1", plan_with(c));
  c = fits;
  c.max_kv_tokens = 0;  // not bounded
  plan_with(c);
}

TEST(Layout, NumbersThatCannotBe) {
  const AttentionSpec spec = small_spec(8, 2);
  Capacity c;
  c.max_requests = 4;
  c.max_query_tokens = 4;
  SchedulerConfig config = gpu_config(0, Policy::stream);
  EXPECT_REFUSED(invalid_argument, "num_ctas: got 0", plan::plan_layout(spec, c, config));  // B78: an occupancy of 0
  config = gpu_config(4, Policy::fixed_split);
  EXPECT_REFUSED(invalid_argument, "max_kv_tokens", plan::plan_layout(spec, c, config));
  c.max_kv_tokens = 100;
  config.split_tokens = 100;  // the tile is 64
  EXPECT_REFUSED(invalid_argument, "split_tokens: got 100", plan::plan_layout(spec, c, config));
  config = gpu_config(4, Policy::stream);
  config.classes[1].tile_kv = 0;
  EXPECT_REFUSED(invalid_argument, "classes[1].tile_kv: got 0", plan::plan_layout(spec, c, config));
  config = gpu_config(4, Policy::stream);
  config.classes[0].cost_per_item = 1000, config.cost_level_item = INT32_MAX;  // refused before they are added
  EXPECT_REFUSED(invalid_argument, "cost_level_item: got 2147483647, wanted 0 to", plan::Planner(spec, c, config));
  AttentionSpec odd = small_spec(8, 2);
  odd.num_qo_heads = 7;
  EXPECT_REFUSED(invalid_argument, "num_qo_heads: got 7", plan::plan_layout(odd, c, gpu_config(4, Policy::stream)));
  c.max_query_tokens = INT64_MAX;
  EXPECT_REFUSED(invalid_argument, "max_query_tokens", plan::plan_layout(spec, c, gpu_config(4, Policy::stream)));
  c.max_query_tokens = 1 << 28;  // scratch rows would not fit their type
  c.max_level_rows = 1 << 28;
  EXPECT_REFUSED(over_capacity, "for this capacity", plan::plan_layout(spec, c, gpu_config(4, Policy::stream)));
}

TEST(Layout, DependsOnTheCapacityOnly) {  // B69, B70: offsets of a captured graph never move
  const AttentionSpec spec = small_spec(8, 2);
  Capacity c;
  c.max_requests = 8;
  c.max_query_tokens = 64;
  c.max_kv_tokens = 10000;
  plan::Planner planner(spec, c, gpu_config(7, Policy::automatic));
  std::vector<PlanHeader> headers;
  for (const std::vector<int32_t>& q : {std::vector<int32_t>(8, 8), {57, 1, 1, 1, 1, 1, 1, 1}, {0, 0, 0, 0, 0, 0, 0, 64}, {1}, {}}) {
    TestBatch b(q, std::vector<int32_t>(q.size(), 100), spec);
    const test::PlanBuffer buffer(planner.layout().plan_bytes);
    planner.plan(b.batch, buffer.data, buffer.bytes);
    EXPECT_EQ(plan::validate_plan(buffer.data, buffer.bytes, spec, true), "");
    headers.push_back(*static_cast<const PlanHeader*>(buffer.data));
  }
  for (const PlanHeader& h : headers) {
    EXPECT_EQ(h.items_offset, headers[0].items_offset);
    EXPECT_EQ(h.units_offset, headers[0].units_offset);
    EXPECT_EQ(h.entries_offset, headers[0].entries_offset);
    EXPECT_EQ(h.touches_offset, headers[0].touches_offset);
    EXPECT_EQ(h.total_bytes, planner.layout().plan_bytes);
  }
}

/// Worst cases for one capacity: many short requests, one long one, everything in between.
TEST(Layout, HoldsForEveryBatchWithinIt) {
  test::Random r(11);
  for (int round = 0; round < 60; ++round) {
    const AttentionSpec spec = test::random_spec(r);
    SchedulerConfig config = test::random_config(r);
    Capacity c;
    c.max_requests = r.in(1, 12);
    c.max_query_tokens = c.max_requests + r.in(0, 50);
    c.max_kv_tokens = r.in(1, 3000);
    plan::Planner planner(spec, c, config);
    const test::PlanBuffer buffer(planner.layout().plan_bytes);
    for (int step = 0; step < 25; ++step) {
      const int32_t requests = r.in(0, c.max_requests);
      std::vector<int32_t> q(size_t(requests), 0), kv(size_t(requests), 0);
      int64_t q_left = c.max_query_tokens, kv_left = c.max_kv_tokens;
      for (int32_t i = 0; i < requests; ++i) {
        q[i] = r.of({1, 1, 0, int32_t(q_left), r.in(0, 20)});
        q[i] = int32_t(std::min<int64_t>(q[i], q_left));
        kv[i] = r.chance(10) ? int32_t(kv_left) : r.in(0, 2 * int32_t(c.max_kv_tokens) / requests);
        kv[i] = int32_t(std::min<int64_t>(kv[i], kv_left));
        q_left -= q[i];
        kv_left -= kv[i];
      }
      TestBatch b(q, kv, spec);
      ASSERT_NO_THROW(planner.plan(b.batch, buffer.data, buffer.bytes)) << "round " << round << " step " << step;
      ASSERT_EQ(plan::validate_plan(buffer.data, buffer.bytes, spec), "") << "round " << round << " step " << step;
    }
  }
}

TEST(Layout, ScratchStaysWithinTheBoundsOfThePolicies) {
  AttentionSpec spec = small_spec(32, 8);
  Capacity c;
  c.max_requests = 256;
  c.max_query_tokens = 256;
  c.max_kv_tokens = 600'000;
  SchedulerConfig config = gpu_config(132, Policy::stream);
  config.compute_rows_above = 1 << 20;                                           // decode only
  EXPECT_EQ(plan::plan_layout(spec, c, config).max_scratch_rows, 2 * 131 * 16);  // two tiles a cut
  config.compute_rows_above = 16;
  config.policy = Policy::fill;
  EXPECT_EQ(plan::plan_layout(spec, c, config).max_scratch_rows, 2 * 131 * (16 + 128));  // ... of each class
  config.policy = Policy::none;
  EXPECT_EQ(plan::plan_layout(spec, c, config).max_scratch_rows, 0);
  EXPECT_EQ(plan::plan_layout(spec, c, config).max_units, 0);
}

}  // namespace
}  // namespace kvloom
