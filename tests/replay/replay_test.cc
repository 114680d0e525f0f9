// Whole replays of small traces: real plans, real runs, rows checked against REF.
#include "cli/replay/replay.h"

#include "cli/replay/cpu_machine.h"

#include "kvloom/support/error.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

namespace kvloom::replay {
namespace {

const std::atomic<bool> kNever{false};

/// Twelve requests of some 60 tokens through a small model; the clock is fixed, so the steps are the same every time.
ReplayOptions small() {
  ReplayOptions o;
  o.requests = 12;
  o.synthetic.median_prompt = 60;
  o.synthetic.median_output = 8;
  o.model = "smollm2-135m";
  o.fixed_step_us = 20'000;
  o.measure_ceilings = false;
  o.engine.threads = 2;
  return o;
}

Report replay(const ReplayOptions& o) { return run_replay(o, kNever, nullptr); }

void expect_sound(const Report& r) {
  EXPECT_EQ(r.fault(), "");
  EXPECT_EQ(r.nonfinite_outputs, 0);
  EXPECT_GE(r.rows_checked, r.steps);
  EXPECT_GT(r.rel_error, 0.0);
  EXPECT_EQ(r.stopped, "");
  EXPECT_GT(r.counts.tokens, 0);
  EXPECT_EQ(r.kinds[0].steps + r.kinds[1].steps + r.kinds[2].steps, r.steps);
}

TEST(Replay, RunsATraceToItsEndAndAgreesWithRef) {
  const Report r = replay(small());
  expect_sound(r);
  EXPECT_EQ(r.requests, 12);
  EXPECT_EQ(r.counts.finished, 12);
  EXPECT_EQ(r.plan_us.count(), r.steps);
  EXPECT_EQ(r.run_us.count(), r.steps);
  EXPECT_GT(r.prefix_hit_rate(), 0.0);
  EXPECT_GT(r.tokens_per_s(), 0.0);
  EXPECT_GT(r.all.gbps(), 0.0);
}

TEST(Replay, TheSameSeedAndAFixedClockGiveTheSameSteps) {
  const Report a = replay(small()), b = replay(small());
  EXPECT_EQ(a.steps, b.steps);
  EXPECT_EQ(a.counts.tokens, b.counts.tokens);
  EXPECT_EQ(a.rel_error, b.rel_error);  // bit for bit: same rows, same values, same order of operations
  EXPECT_EQ(a.max_rel_error, b.max_rel_error);
  ReplayOptions other = small();
  other.engine.threads = 1;
  const Report c = replay(other);
  EXPECT_EQ(a.rel_error, c.rel_error);
  other.seed = 2;
  EXPECT_NE(a.rel_error, replay(other).rel_error);
}

struct Shape {
  const char* model;
  int32_t layers;
  DType q, kv;
  KvLayout layout;
  int32_t page_size;
};

class ReplayShapes : public testing::TestWithParam<Shape> {};

TEST_P(ReplayShapes, AgreeWithRef) {
  const Shape& s = GetParam();
  ReplayOptions o = small();
  o.requests = 3;
  o.synthetic.median_prompt = 40;
  o.model = s.model;
  o.layers = s.layers;
  o.types = {s.q, s.kv};
  o.layout = s.layout;
  o.batch.page_size = s.page_size;
  const Report r = replay(o);
  expect_sound(r);
  EXPECT_EQ(r.run_us.count(), r.steps * s.layers);
  EXPECT_EQ(r.pools, s.layers);
}

INSTANTIATE_TEST_SUITE_P(Models, ReplayShapes,
                         testing::Values(Shape{"llama-3.1-8b", 1, DType::f32, DType::f32, KvLayout::hnd, 16},
                                         Shape{"gemma-2-9b", 2, DType::bf16, DType::bf16, KvLayout::nhd, 16},
                                         Shape{"gpt-oss-20b", 3, DType::bf16, DType::bf16, KvLayout::hnd, 16},
                                         Shape{"deepseek-v3", 1, DType::bf16, DType::bf16, KvLayout::nhd, 64},
                                         Shape{"qwen2.5-7b", 1, DType::f16, DType::f16, KvLayout::hnd, 1},
                                         Shape{"smollm2-135m", 2, DType::bf16, DType::e4m3, KvLayout::hnd, 16},
                                         Shape{"smollm2-135m", 1, DType::f16, DType::e5m2, KvLayout::nhd, 7}));

TEST(Replay, EveryPolicyComputesTheSameAnswer) {
  for (const Policy policy : {Policy::none, Policy::heap, Policy::stream, Policy::fill, Policy::fixed_split}) {
    SCOPED_TRACE(name_of(policy));
    ReplayOptions o = small();
    o.requests = 6;
    o.engine.policy = policy;
    const Report r = replay(o);
    expect_sound(r);
    ASSERT_EQ(r.policies.size(), 1u);
    EXPECT_EQ(r.policies.begin()->first, name_of(policy));
    EXPECT_EQ(r.split_steps, policy == Policy::none || policy == Policy::fixed_split ? 0 : r.steps);
  }
}

TEST(Replay, SamplesReadTheirSharedPromptOnce) {
  ReplayOptions o = small();
  o.requests = 2;
  o.synthetic.median_prompt = 1500;
  o.synthetic.median_output = 12;
  o.batch.samples = 24;
  const Report levels = replay(o);
  expect_sound(levels);
  EXPECT_EQ(levels.counts.finished, 48);
  EXPECT_GT(levels.counts.copied_pages, 0);
  EXPECT_GT(levels.prefix_hit_rate(), 0.9);
  EXPECT_GT(levels.steps_with_levels, 0);
  EXPECT_GT(levels.saved_bytes, levels.all.read_bytes);
  o.engine.levels = LevelMode::off;
  const Report flat = replay(o);
  expect_sound(flat);
  EXPECT_EQ(flat.steps_with_levels, 0);
  EXPECT_EQ(flat.counts.tokens, levels.counts.tokens);
  EXPECT_EQ(flat.all.read_bytes, levels.all.read_bytes + levels.saved_bytes);
}

TEST(Replay, ASmallPoolPreemptsAndStaysRight) {
  ReplayOptions o = small();
  o.synthetic.shared_percent = 0;
  o.synthetic.requests_per_second = 500;
  o.synthetic.median_output = 60;
  o.requests = 16;
  o.kv_pool_tokens = 800;
  const Report r = replay(o);
  expect_sound(r);
  EXPECT_GT(r.counts.preempted, 0);
  EXPECT_GT(r.counts.recomputed, 0);
  EXPECT_EQ(r.counts.finished + int64_t(r.rejected.size()), 16);
}

TEST(Replay, APoolTooSmallForARequestRejectsItByName) {
  ReplayOptions o = small();
  o.kv_pool_tokens = 96;
  const Report r = replay(o);
  EXPECT_EQ(r.fault(), "");
  ASSERT_GT(r.rejected.size(), 0u);
  EXPECT_LT(r.rejected.size(), 12u);
  EXPECT_EQ(r.requests, 12);
  EXPECT_NE(to_text(r).find("rejected: line " + std::to_string(r.rejected[0].line) + ": "), std::string::npos);
  EXPECT_EQ(to_json(r)["rejected"], r.rejected.size());
}

TEST(Replay, NoRequestsAreAnEmptyReport) {
  ReplayOptions o = small();
  o.requests = 0;
  const Report r = replay(o);
  EXPECT_EQ(r.steps, 0);
  EXPECT_EQ(r.rows_checked, 0);
  const nlohmann::ordered_json j = to_json(r);
  EXPECT_EQ(j["tokens_per_s"], 0.0);
  EXPECT_TRUE(j["balance"].is_null());
  EXPECT_FALSE(to_text(r).empty());
}

TEST(Replay, ARaisedFlagStopsItWithAPartialReport) {
  const std::atomic<bool> now{true};
  const Report none = run_replay(small(), now, nullptr);
  EXPECT_EQ(none.stopped, "interrupted");
  EXPECT_EQ(none.steps, 0);
  std::atomic<bool> later{false};
  const Report some = run_replay(small(), later, [&](const ReplayProgress& p) { later = p.steps >= 3; });
  EXPECT_EQ(some.stopped, "interrupted");
  EXPECT_EQ(some.steps, 3);
  EXPECT_EQ(to_json(some)["stopped"], "interrupted");
  EXPECT_NE(to_text(some).find("STOPPED BEFORE THE END (interrupted)"), std::string::npos);
}

TEST(Replay, ProgressEndsAtAll) {
  double last = 0.0;
  run_replay(small(), kNever, [&](const ReplayProgress& p) {
    EXPECT_GE(p.share, last);
    last = p.share;
  });
  EXPECT_DOUBLE_EQ(last, 1.0);
}

TEST(Replay, ExportsTheShapeOfEveryStep) {
  ReplayOptions o = small();
  o.batch.samples = 3;
  o.export_path = (std::filesystem::path(testing::TempDir()) / "kvloom_replay_export.jsonl").string();
  const Report r = replay(o);
  std::ifstream file(o.export_path);
  int64_t steps = 0, tokens = 0, shared = 0;
  for (std::string line; std::getline(file, line); ++steps) {
    const nlohmann::json j = nlohmann::json::parse(line);
    EXPECT_EQ(j["step"], steps);
    for (size_t i = 0; i < j["q_len"].size(); ++i) {
      tokens += j["q_len"][i].get<int64_t>();
      EXPECT_LE(j["q_len"][i], j["kv_len"][i]);
      EXPECT_LT(j["shared_with"][i].get<int64_t>(), int64_t(i));
      shared += j["shared_tokens"][i].get<int64_t>();
      EXPECT_EQ(j["shared_tokens"][i] > 0, j["shared_with"][i] >= 0);
    }
  }
  std::filesystem::remove(o.export_path);
  EXPECT_EQ(steps, r.steps);
  EXPECT_EQ(tokens, r.counts.tokens);
  EXPECT_GT(shared, 0);
  o.export_path = "/dev/full";
  EXPECT_THROW(replay(o), Error);
}

TEST(Replay, TheReportHasTheKeysThatChecksRead) {
  const nlohmann::ordered_json j = to_json(replay(small()));
  for (const char* key :
       {"requests", "steps", "tokens", "tokens_per_s", "rows_checked", "max_rel_error", "rel_error", "read_GBps", "balance",
        "prefix_hit_rate", "peak_rss_bytes", "rejected", "preempted", "skipped_rows", "bytes_saved_by_levels", "flops_per_s"}) {
    EXPECT_TRUE(j.contains(key)) << key;
  }
  for (const char* key : {"plan_us", "run_us"}) {
    EXPECT_GT(j[key]["median"], 0.0);
    EXPECT_GE(j[key]["p99"], j[key]["median"]);
  }
}

TEST(Replay, RefusesOptionsThatCanNotBe) {
  const auto refused = [](auto change) {
    ReplayOptions o = small();
    change(o);
    EXPECT_THROW(replay(o), Error);
  };
  refused([](ReplayOptions& o) { o.layers = 31; });
  refused([](ReplayOptions& o) { o.layers = 0; });
  refused([](ReplayOptions& o) { o.rate_scale = 0; });
  refused([](ReplayOptions& o) { o.check_rows = 0; });
  refused([](ReplayOptions& o) { o.overrides.heads = 10; });
  refused([](ReplayOptions& o) { o.batch.token_budget = 0; });
  refused([](ReplayOptions& o) { o.model = "gpt-5"; });
  refused([](ReplayOptions& o) { o.trace = "/nonexistent.csv"; });
}

// The check must be able to fail: a key that changed behind the engine's back, and an unwritten one that it reads, are both found.
TEST(Replay, TheRowCheckFindsAWrongKey) {
  const Model model = find_model("smollm2-135m");
  std::vector<TraceRequest> trace(1);
  trace[0].prompt_tokens = 200;
  PageAllocator pages(16);
  RadixTree cache(pages);
  Batcher batcher(BatchOptions{}, trace, pages, cache);
  MachineOptions options;
  options.engine.threads = 1;
  options.pages = 16;
  CpuMachine machine(model, options);
  batcher.arrive(0);
  machine.prepare(batcher, batcher.schedule());
  machine.plan(0);
  machine.fill_inputs(0);
  machine.run(0);
  const auto checked = [&] {
    RowCheck check(1);
    check.add(machine.spec(0), machine.rows_of(0, check.choose(machine.plan_view(0), machine.spec(0), 64)));
    return check.worst_row();
  };
  EXPECT_LT(checked(), 2.5e-3);
  EXPECT_EQ(machine.nonfinite_outputs(), 0);
  auto* const values = static_cast<uint16_t*>(machine.store().v(0).data);
  for (int i = 0; i < 64; ++i) values[i] = float_to_bf16(50.0f);  // V of the first token of the first page, after the run
  EXPECT_GT(checked(), 0.1);
  for (int i = 0; i < 64; ++i) values[i] = 0xffff;
  machine.fill_inputs(0);
  machine.run(0);
  EXPECT_GT(machine.nonfinite_outputs(), 0);
}

}  // namespace
}  // namespace kvloom::replay
