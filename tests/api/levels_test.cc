// One step put together from several: explicit levels, shared prefixes that the planner finds, and states that the caller merges.
#include "kvloom/api/ops.h"
#include "kvloom/attn/state.h"
#include "tests/support/step.h"

#include <gtest/gtest.h>

namespace kvloom::test {
namespace {

EngineOptions few_ctas() {
  EngineOptions o;
  o.threads = 2;
  o.num_ctas = 7;
  return o;
}

/// Requests whose first `shared` keys are the same pages: the first request's.
Step shared_prefix(DType kv_dtype, int32_t requests, int32_t shared, int32_t own) {
  Step s;
  s.spec = small_spec();
  s.spec.kv_dtype = kv_dtype;
  for (int32_t r = 0; r < requests; ++r) s.requests.push_back({1 + r % 2, shared + own + r});
  s.make();
  for (int32_t r = 1; r < requests; ++r) {
    for (int32_t p = 0; p < shared / s.spec.page_size; ++p) s.pages[size_t(s.list_indptr[size_t(r)] + p)] = s.pages[size_t(p)];
  }
  return s;
}

TEST(Levels, B48_FoundFromThePageTablesAndRight) {
  for (const DType kv : {DType::f32, DType::e4m3}) {
    Step s = shared_prefix(kv, 12, 1024, 17);
    Capacity capacity = s.capacity();
    capacity.max_level_rows = s.qo_indptr.back();
    Engine engine(s.spec, capacity, few_ctas());
    const Plan plan = engine.plan(s.batch);
    EXPECT_EQ(plan.view().header->num_levels, 2);
    engine.run(plan, s.tensors);
    expect_right(s);
    s.poison();
    attention(s.spec, s.batch, s.tensors, few_ctas());  // one call finds them too
    expect_right(s);
    EngineOptions flat = few_ctas();
    flat.levels = LevelMode::off;
    Engine plain(s.spec, capacity, flat);
    EXPECT_EQ(plain.plan(s.batch).view().header->num_levels, 1);
    Engine no_room(s.spec, s.capacity(), few_ctas());  // levels that do not fit are not taken
    const Plan without = no_room.plan(s.batch);
    EXPECT_EQ(without.view().header->num_levels, 1);
    s.poison();
    no_room.run(without, s.tensors);
    expect_right(s);
  }
}

TEST(Levels, ExplicitOnesGatherAnyRows) {
  // Tokens 0, 2 and 3 share the first 64 keys of request 0's list; every token has the rest of its own.
  Step s;
  s.spec = small_spec();
  s.spec.variant.range.causal = false;
  s.requests = {{2, 100}, {2, 80}};
  s.make();
  const std::vector<int32_t> first{0, 2, 3}, second{1}, own0{0}, own1{2, 3};
  const std::vector<LevelGroup> groups{
      {0, 0, 0, 64, 0, 0, -1, {first.data(), 3}},
      {1, 0, 0, 100, 0, 0, -1, {second.data(), 1}},
      {1, 4, 0, 36, 64, 64, -1, {own0.data(), 1}},
      {1, s.list_indptr[1], 5, 80, 0, 0, -1, {own1.data(), 2}},
  };
  s.batch.groups = {groups.data(), int64_t(groups.size())};
  attention(s.spec, s.batch, s.tensors, few_ctas());
  expect_right(s);
}

// A key that two groups give a row would count twice. Keys at the same position in other pages are other keys (as above), and what a row does not see
// does not count.
TEST(Levels, AKeyThatARowHasTwiceIsRefused) {
  Step s;
  s.spec = small_spec();
  s.spec.variant.range = {true, -1, -1};
  s.requests = {{2, 100}, {2, 80}};
  s.make();
  for (int64_t i = 0; i < 4; ++i) s.pages[size_t(s.list_indptr[1] + i)] = s.pages[size_t(i)];  // 64 tokens that both requests have in the same pages
  const std::vector<int32_t> both{0, 1, 2, 3}, own0{0, 1}, own1{2, 3};
  const auto refusal = [&](AttentionSpec spec, const std::vector<LevelGroup>& groups, bool check_pages = true) {
    Batch batch = s.batch;
    batch.groups = {groups.data(), int64_t(groups.size())};
    EngineOptions options = few_ctas();
    options.check_pages = check_pages;
    Capacity capacity = s.capacity();
    capacity.max_level_rows = 8;
    Engine engine(spec, capacity, options);
    try {
      engine.plan(batch);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const LevelGroup shared = {0, 0, 0, 64, 0, 0, -1, {both.data(), 4}}, rest0 = {1, 4, 0, 36, 64, 64, -1, {own0.data(), 2}},
                   rest1 = {1, s.list_indptr[1], 64, 80, 0, 0, -1, {own1.data(), 2}};
  EXPECT_EQ(refusal(s.spec, {shared, rest0, rest1}), "");

  LevelGroup early0 = rest0, early1 = rest1;
  early0.list_begin = 3, early0.kv_end = 52, early0.kv_pos0 = early0.kv_index0 = 48;  // the same entries of the table
  early1.kv_begin = 0;                                                              // other entries with the same pages
  const std::string entries = refusal(s.spec, {shared, early0, rest1}), pages = refusal(s.spec, {shared, rest0, early1});
  EXPECT_EQ(entries.rfind("plan: groups[0], groups[1]: query token 0: both have the key at position 48, which would count twice", 0), 0u) << entries;
  EXPECT_EQ(pages.rfind("plan: groups[0], groups[2]: query token 2: both have the key at position 0,", 0), 0u) << pages;
  EXPECT_NE(refusal(s.spec, {shared, early0, rest1}, false), "") << "entries are compared without reading any";
  EXPECT_EQ(refusal(s.spec, {shared, rest0, early1}, false), "") << "and ids are not read";

  AttentionSpec window = s.spec;
  window.variant.range.left = 10;  // token 2 is at 78
  EXPECT_EQ(refusal(window, {shared, rest0, early1}), "");
  window.variant.range.left = 15;
  EXPECT_NE(refusal(window, {shared, rest0, early1}).find("position 63"), std::string::npos);
  LevelGroup before = shared, again = shared;  // below the first position a prefix of 0 keeps every key, whatever the window
  before.kv_pos0 = before.kv_index0 = again.kv_pos0 = again.kv_index0 = -64, again.level = 1;
  EXPECT_NE(refusal(window, {before, again}).find("groups[0], groups[1]: query token 0: both have the key at position -64"), std::string::npos) << refusal(window, {before, again});
  early1.kv_pos0 = early1.kv_index0 = 1;  // the same pages, at other positions
  EXPECT_EQ(refusal(s.spec, {shared, rest0, early1}), "");
  LevelGroup head0 = shared, head1 = early0;
  head0.kv_head = 0, head1.kv_head = 1;
  EXPECT_EQ(refusal(s.spec, {head0, head1}), "");

  std::vector<LevelGroup> many;  // levels of other entries, the last of which has the first's again: found among all pairs
  for (int32_t i = 0; i < 5; ++i) many.push_back({i, i % 4, 0, 16, 0, 0, -1, {own0.data(), 2}});
  const std::string last = refusal(s.spec, many);
  EXPECT_NE(last.find("groups[0], groups[4]: query token 0: both have the key at position 0,"), std::string::npos) << last;
  many.pop_back();
  EXPECT_EQ(refusal(s.spec, many), "");
}

// Groups name keys without lengths of requests, but masks have as many columns.
TEST(Levels, AMaskWithoutLengthsIsRefused) {
  Step s;
  s.spec = small_spec();
  s.spec.variant.custom_mask = true;
  s.requests = {{2, 100}};
  s.make();
  const std::vector<int32_t> own{0, 1}, q_pos0{98};
  const LevelGroup group = {0, 0, 0, 100, 0, 0, -1, {own.data(), 2}};
  Batch batch = s.batch;
  batch.groups = {&group, 1};
  batch.q_pos0 = q_pos0.data();
  batch.kv_len = {};
  Engine engine(s.spec, s.capacity(), few_ctas());
  try {
    engine.plan(batch);
    FAIL() << "not refused";
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()).rfind("plan: kv_len: got 0 entries, wanted 1, with explicit groups, too", 0), 0u) << e.what();
  }
}

/// A contiguous range of the keys of a ragged step, as a step of its own. Positions stay those of the whole.
void run_part(const Step& whole, int32_t begin, int32_t end, Array& o, Array& lse, bool bare) {
  AttentionSpec spec = whole.spec;
  const std::vector<int32_t> kv_len{end - begin}, q_pos0{whole.kv_len[0] - whole.requests[0].q_len - begin};
  const std::vector<int64_t> first{begin};
  Batch batch = whole.batch;
  batch.kv_len = IndexView(kv_len.data(), 1);
  batch.list_indptr = IndexView(first.data(), 1);
  batch.q_pos0 = q_pos0.data();
  RunTensors t = whole.tensors;
  t.o = o;
  t.lse = lse;
  t.bare_state = bare;
  attention(spec, batch, t, few_ctas());
}

TEST(Levels, B42_StatesThatTheCallerMergesAreOnePass) {
  for (const bool sink : {false, true}) {
    Step s;
    s.spec = small_spec();
    s.spec.storage = Storage::ragged;
    s.spec.variant.sink = sink;
    s.requests = {{64, 4160}};
    s.make();
    const int64_t rows = 64;
    Array o_a(DType::f32, {rows, 4, 64}), o_b(DType::f32, {rows, 4, 64}), lse_a(DType::f32, {rows, 4}), lse_b(DType::f32, {rows, 4});
    run_part(s, 0, 4096, o_a, lse_a, true);
    run_part(s, 4096, 4160, o_b, lse_b, true);
    merge_states(o_a, lse_a, o_b, lse_b, s.o, s.lse);
    for (int64_t r = 0; sink && r < rows * 4; ++r) {  // the sink is applied once, by the caller
      const RowFinish w = sink_weights(s.lse.get(r), s.sinks[size_t(r % 4)]);
      for (int64_t d = 0; d < 64; ++d) s.o.set(r * 64 + d, w.factor * s.o.get(r * 64 + d));
      s.lse.set(r, w.lse);
    }
    expect_right(s, sink ? "sink" : "plain");
  }
}

TEST(Levels, B43_LseIsTheNaturalLogarithm) {
  for (const Storage storage : {Storage::paged, Storage::ragged}) {
    for (const int32_t q_len : {1, 40}) {
      Step s;
      s.spec = small_spec();
      s.spec.storage = storage;
      s.spec.variant.range.causal = false;
      s.requests = {{q_len, 4}};
      s.make();
      s.q.fill(0.0f);
      attention(s.spec, s.batch, s.tensors, few_ctas());
      for (int64_t i = 0; i < s.lse.count(); ++i) ASSERT_NEAR(s.lse.get(i), 1.3862943611198906, 2e-7);
    }
  }
}

}  // namespace
}  // namespace kvloom::test
