// A timeline in numbers, as a picture and as a trace: known answers, and what bench and replay do with --timeline.
#include "cli/report/timeline.h"
#include "cli/report/timeline_files.h"
#include "tests/replay/tool.h"
#include "tests/support/errors.h"
#include "tests/support/step.h"

#include <nlohmann/json.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

namespace kvloom::cli {
namespace {

using test::contains;
using test::read_file;
using test::Tool;

/// Two lists of a GPU: memory items of cost 10, 20 and 30, all on list 0, and a compute item of cost 40 on list 1. They take 1, 2, 3 and 5 us; CTAs
/// begin at 0 and 1, are ready half a microsecond later and leave when their items are done.
Timeline known() {
  Timeline t;
  t.name = "known <&> \"quoted\"";
  t.key = "attend.sm90.bf16.d128.paged";
  t.num_lists = t.num_lanes = 2;
  t.kernel_us = 6.5;
  const double us[4] = {1, 2, 3, 5};
  double at = 0.5;
  for (int32_t i = 0; i < 4; ++i) {
    const int32_t list = i < 3 ? 0 : 1;
    if (i == 3) at = 1.5;
    PlannedItem p;
    p.list = list;
    p.work.kernel_class = list & 1;
    p.work.kv_head_count = p.work.row_count = 1;
    p.work.partial_row = i == 2 ? 7 : -1;
    p.cost = uint64_t(10 * (i + 1));
    p.bytes = 1000.0 * us[i];
    p.flop = 2000.0 * us[i];
    t.planned.push_back(p);
    t.items.push_back({i, list, list, at, at + us[i] * 0.1, at + us[i] * 0.7, at + us[i] * 0.8, at + us[i], i == 2 ? 2 : 0});
    at += us[i];
  }
  t.ctas = {{5, 0, 0.0, 6.5}, {9, 1, 1.0, 6.5}};
  t.us_per_cost = 0.11;
  t.step_ns = 100;
  return t;
}

TEST(TimelineSummary, KnownAnswers) {
  const Timeline t = known();
  const TimelineSummary s = summarise(t);
  EXPECT_DOUBLE_EQ(s.most, 6 / 6.5);
  EXPECT_DOUBLE_EQ(s.least, 5 / 6.5);
  EXPECT_DOUBLE_EQ(s.mean, 11 / 13.0);
  EXPECT_DOUBLE_EQ(s.within, 11 / 12.0);
  EXPECT_DOUBLE_EQ(s.planned_balance, 60 / 50.0);
  EXPECT_DOUBLE_EQ(s.measured_balance, 6 / 5.5);
  EXPECT_NEAR(s.wait, 0.1, 1e-12);
  EXPECT_NEAR(s.attend, 0.6, 1e-12);
  EXPECT_NEAR(s.store, 0.1, 1e-12);
  EXPECT_NEAR(s.merge, 0.2, 1e-12);
  EXPECT_EQ(s.merged, 2);
  EXPECT_EQ(s.classes[0].items, 3);
  EXPECT_NEAR(s.classes[0].correlation, 1.0, 1e-12);
  EXPECT_NEAR(s.classes[0].ns_per_cost, 100.0, 1e-9);
  EXPECT_NEAR(s.classes[0].bytes_per_ns, 1.0, 1e-12);
  EXPECT_NEAR(s.classes[0].flop_per_ns, 2.0, 1e-12);
  EXPECT_TRUE(std::isnan(s.classes[1].correlation)) << "of one item";
  const nlohmann::ordered_json j = to_json(t, s);
  EXPECT_TRUE(j["classes"]["compute"]["cost_correlation"].is_null());
  EXPECT_EQ(j["ctas"], 2);
  EXPECT_EQ(to_text(t, s), "kernel 6.5 us; items cover 84.6 % of 2 CTAs (92.3 % of the fullest); balance 1.200 planned, 1.091 measured");
}

TEST(TimelineSummary, NothingAtAll) {
  const TimelineSummary s = summarise({});
  EXPECT_EQ(s.mean, 0.0);
  EXPECT_EQ(s.measured_balance, 1.0);
  EXPECT_EQ(to_json(Timeline(), s)["items"], 0);
  EXPECT_TRUE(contains(timeline_svg({Timeline()}), "</svg>"));
}

TEST(ChromeTrace, ItemsWithTheirPartsInside) {
  const nlohmann::json j = nlohmann::json::parse(chrome_trace({known(), known()}));
  std::map<int, std::vector<nlohmann::json>> by_process;
  std::map<int, std::string> names;
  for (const auto& e : j["traceEvents"]) {
    if (e["ph"] == "X") by_process[e["pid"]].push_back(e);
    if (e["name"] == "process_name") names[e["pid"]] = e["args"]["name"];
  }
  ASSERT_EQ(by_process.size(), 4u) << "planned and measured of two steps";
  EXPECT_EQ(names[1], known().name + ", planned");
  EXPECT_EQ(names[2], known().name + ", measured");
  EXPECT_EQ(by_process[1].size(), 4u);
  EXPECT_EQ(by_process[2].size(), 4u * 4 + 1) << "item, wait, attend, store; the partial one arrives, too";
  std::set<int> items;
  for (size_t i = 0; i < by_process[2].size(); ++i) {
    const nlohmann::json& e = by_process[2][i];
    if (!e.contains("args")) continue;
    items.insert(e["args"]["item"].get<int>());
    const double begin = e["ts"], end = begin + e["dur"].get<double>();
    for (size_t part = i + 1; part < by_process[2].size() && !by_process[2][part].contains("args"); ++part) {
      const nlohmann::json& p = by_process[2][part];
      EXPECT_EQ(p["tid"], e["tid"]);
      EXPECT_GE(p["ts"].get<double>(), begin - 1e-9);
      EXPECT_LE(p["ts"].get<double>() + p["dur"].get<double>(), end + 2e-3);
    }
  }
  EXPECT_EQ(items, (std::set<int>{0, 1, 2, 3}));
  EXPECT_DOUBLE_EQ(by_process[1][3]["dur"], 4.4);
}

/// Occurrences of `part`.
int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(TimelineSvg, PlannedAboveMeasuredByKind) {
  const std::string svg = timeline_svg({known()});
  EXPECT_EQ(count(svg, "<svg "), 1);
  EXPECT_EQ(count(svg, "<title>"), 8);
  EXPECT_TRUE(contains(svg, "known &lt;&amp;&gt; \"quoted\""));
  EXPECT_TRUE(contains(svg, "sum of items / (CTAs x kernel time) = 0.846"));
  EXPECT_TRUE(contains(svg, ">kernel 6.5 us<"));
  EXPECT_LT(svg.find(">planned<"), svg.find(">measured<"));
  EXPECT_EQ(count(svg, "fill=\"#cbd5e1\""), 4 + 1) << "four waits, and the legend";
  EXPECT_EQ(count(svg, "fill=\"#3b82f6\""), 2 * 3 + 1);
  EXPECT_EQ(count(svg, "fill=\"#f59e0b\""), 2 * 1 + 1);
  EXPECT_EQ(timeline_svg({known()}), svg) << "equal input, equal bytes";
  EXPECT_EQ(count(timeline_svg({known(), known()}), ">measured<"), 2);
}

// A real run: read back, every item once.
TEST(ReadTimeline, OfARunOnTheCpu) {
  test::Step s;
  s.spec = test::small_spec();
  s.requests = {{1, 700}, {40, 300}, {1, 90}};
  s.make();
  EngineOptions options;
  options.threads = 2;
  options.timeline = true;
  Engine engine(s.spec, s.capacity(), options);
  const Plan plan = engine.plan(s.batch);
  std::vector<uint64_t> memory(size_t(engine.timeline_layout(plan).bytes()) / 8);
  s.tensors.timeline = memory.data();
  engine.run(plan, s.tensors);
  const Timeline t = read_timeline("a step", engine, plan, memory.data());
  EXPECT_TRUE(t.on_cpu);
  EXPECT_LE(t.num_lanes, 2);
  ASSERT_EQ(int64_t(t.items.size()), plan.view().items.size);
  ASSERT_EQ(t.planned.size(), t.items.size());
  double us = 0.0, planned_us = 0.0;
  for (size_t i = 0; i < t.items.size(); ++i) {
    const TimedItem& x = t.items[i];
    EXPECT_EQ(x.item, int32_t(i));
    EXPECT_LE(0.0, x.begin);
    EXPECT_LE(x.begin, x.fed);
    EXPECT_LE(x.end, t.kernel_us);
    us += x.us();
    planned_us += double(t.planned[i].cost) * t.us_per_cost;
  }
  EXPECT_NEAR(planned_us, us, 1e-6 * us);
}

TEST(TimelineFiles, EndingsAndFolders) {
  EXPECT_EQ(timeline_path_fault("a.svg"), "");
  EXPECT_EQ(timeline_path_fault("b/c.json"), "");
  EXPECT_TRUE(contains(timeline_path_fault("trace.txt"), "got 'trace.txt', wanted a file name that ends in .svg"));
  EXPECT_TRUE(contains(test::error_of([] { check_timeline_paths({"/nonexistent/t.svg"}); }), "--timeline /nonexistent/t.svg: got a folder that does not exist"));
  EXPECT_TRUE(contains(test::error_of([] { write_timelines({"/dev/full/t.json"}, {}); }, ErrorCode::io), "--timeline /dev/full/t.json: cannot open"));
}

/// The files of a command that has run.
void expect_files(const Tool& tool, int steps) {
  const std::string svg = read_file(tool.file("t.svg"));
  EXPECT_EQ(svg.rfind("<svg ", 0), 0u);
  EXPECT_EQ(count(svg, ">measured<"), steps);
  const nlohmann::json trace = nlohmann::json::parse(read_file(tool.file("t.json")));
  std::set<int> processes;
  for (const auto& e : trace["traceEvents"]) processes.insert(e["pid"].get<int>());
  EXPECT_EQ(int(processes.size()), 2 * steps);
}

TEST(TimelineOption, OfBench) {
  Tool bench({"bench", "--filter", "prefill-causal-16x128", "--threads", "1", "2", "--repeat", "1", "--timeline", "@/t.svg", "--timeline", "@/t.json", "--json", "@/out.json"});
  ASSERT_EQ(bench.wait(), 0) << bench.err();
  expect_files(bench, 2);
  EXPECT_TRUE(contains(bench.out(), "; items cover ")) << bench.out();
  const nlohmann::json rows = nlohmann::json::parse(read_file(bench.file("out.json")))["rows"];
  for (const auto& row : rows) {
    EXPECT_GT(row["timeline"]["coverage"]["within_ctas"], 0.5);
    EXPECT_EQ(row["timeline"]["classes"]["compute"]["items"], row["timeline"]["items"]);
  }
}

TEST(TimelineOption, OfReplay) {
  Tool replay({"replay", "--requests", "4", "--model", "smollm2-135m", "--fixed-step-us", "1000", "--no-ceilings", "--timeline", "@/t.svg", "--timeline", "@/t.json", "--json", "@/out.json"});
  ASSERT_EQ(replay.wait(), 0) << replay.err();
  const nlohmann::json report = nlohmann::json::parse(read_file(replay.file("out.json")));
  const int kinds = int(report["timeline"].size());
  EXPECT_GE(kinds, 2);
  expect_files(replay, kinds);
  for (const auto& [kind, j] : report["timeline"].items()) {
    EXPECT_GT(report[kind + "_steps"]["steps"], 0);
    EXPECT_LT(j["step"], report["steps"]);
  }
  EXPECT_TRUE(contains(replay.out(), "  timeline     step ")) << replay.out();
}

TEST(TimelineOption, WhatCanNotBeWrittenIsKnownBeforeTheWork) {
  for (const char* command : {"bench", "replay"}) {
    Tool ending({command, "--timeline", "@/t.txt"});
    EXPECT_EQ(ending.wait(), 2) << command;
    EXPECT_TRUE(contains(ending.err(), "--timeline: got '") && contains(ending.err(), "wanted a file name that ends in .svg")) << ending.err();
    Tool folder({command, "--timeline", "/nonexistent/t.svg"});
    EXPECT_EQ(folder.wait(), 1) << command;
    EXPECT_TRUE(contains(folder.err(), "--timeline /nonexistent/t.svg: got a folder that does not exist or can't be written")) << folder.err();
    EXPECT_EQ(folder.out(), "");
  }
}

}  // namespace
}  // namespace kvloom::cli
