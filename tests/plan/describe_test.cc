// Descriptions of plans: the numbers in them are the plan's, the JSON parses, the picture is well-formed and shows every item and merge.
#include "kvloom/plan/describe.h"

#include "kvloom/plan/describe_facts.h"
#include "kvloom/plan/describe_svg_style.h"
#include "tests/plan/random_batches.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <set>

namespace kvloom {
namespace {

using test::Planned;
using test::TestBatch;

/// 12 decodes on 4 CTAs with cuts and merges, KV heads 2.
struct Example {
  AttentionSpec spec = test::small_spec(8, 2);
  TestBatch batch{std::vector<int32_t>(12, 1), {3000, 100, 700, 64, 1, 900, 1500, 220, 310, 17, 2048, 5}, spec};
  SchedulerConfig config = test::gpu_config(4, Policy::stream);
  Planned planned{spec, test::capacity_of(batch), config, batch.batch};
};

size_t count(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + what.size())) ++n;
  return n;
}

TEST(Describe, ItemCostsAreThePlanners) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    test::RandomCase c;
    test::make_random(seed, c);
    const Planned p(c.spec, c.capacity, c.config, c.b.batch);
    uint64_t total = 0, largest = 0;
    for (int32_t cta = 0; cta < p.header().num_ctas; ++cta) {
      uint64_t load = 0;
      for (int32_t i = p.view.cta_indptr[cta]; i < p.view.cta_indptr[cta + 1]; ++i) load += plan::item_cost(p.view, p.view.items[i]);
      total += load;
      largest = std::max(largest, load);
    }
    ASSERT_EQ(total, p.header().cost_total) << "seed " << seed;
    ASSERT_EQ(largest, p.header().cost_max) << "seed " << seed;
  }
}

TEST(Describe, JsonHoldsTheKnownAnswer) {
  const AttentionSpec spec = test::small_spec(1, 1, Storage::ragged);
  TestBatch b({1, 1, 1, 1}, {1000, 100, 100, 50}, spec);
  const Planned p(spec, test::capacity_of(b), test::kv_config(4, Policy::heap), b.batch);
  const nlohmann::json j = nlohmann::json::parse(plan::describe_json(p.view, spec));
  EXPECT_EQ(j["policy"], "heap");
  EXPECT_EQ(j["chunk_cap"], 313);
  EXPECT_EQ(j["cta_load"], (std::vector<int>{313, 313, 313, 311}));
  EXPECT_EQ(j["work_items"].size(), 7u);
  EXPECT_EQ(j["merge_units"].size(), 1u);
  EXPECT_EQ(j["merge_units"][0]["entries"].size(), 4u);
  EXPECT_EQ(j["balance"].dump(), "1.002");  // 313 / 312.5, to three decimals
}

TEST(Describe, IdleCtasAreNamed) {
  const AttentionSpec spec = test::small_spec(1, 1, Storage::ragged);
  TestBatch b({1, 1}, {64, 64}, spec);
  const auto text_on = [&](int32_t ctas) {
    const Planned p(spec, test::capacity_of(b), test::kv_config(ctas, Policy::heap, 64), b.batch);
    return plan::describe_text(p.view, spec);
  };
  EXPECT_NE(text_on(8).find("  idle       6 of 8 CTAs have nothing to do"), std::string::npos) << text_on(8);
  EXPECT_EQ(text_on(2).find("idle"), std::string::npos) << text_on(2);
}

TEST(Describe, JsonIsThePlan) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    test::RandomCase c;
    test::make_random(seed, c);
    const Planned p(c.spec, c.capacity, c.config, c.b.batch);
    const std::string text = plan::describe_json(p.view, c.spec);
    EXPECT_EQ(text, plan::describe_json(p.view, c.spec));
    const nlohmann::json j = nlohmann::json::parse(text);
    ASSERT_EQ(j["groups"].size(), size_t(p.view.groups.size));
    ASSERT_EQ(j["work_items"].size(), size_t(p.view.items.size));
    ASSERT_EQ(j["merge_units"].size(), size_t(p.view.units.size));
    ASSERT_EQ(j["cta_load"].get<std::vector<uint64_t>>(), p.loads());
    for (int32_t cta = 0; cta < p.header().num_ctas; ++cta) {
      for (int32_t i = p.view.cta_indptr[cta]; i < p.view.cta_indptr[cta + 1]; ++i) ASSERT_EQ(j["work_items"][i]["cta"], cta);
    }
    // What a unit reads and what touches it are the same items.
    std::vector<std::set<int32_t>> reads(size_t(p.view.units.size)), touched(size_t(p.view.units.size));
    for (size_t u = 0; u < reads.size(); ++u) {
      for (const auto& e : j["merge_units"][u]["entries"]) reads[u].insert(e["item"].get<int32_t>());
    }
    for (int32_t i = 0; i < p.header().num_items; ++i) {
      for (const auto& u : j["work_items"][i]["units"]) touched[u.get<size_t>()].insert(i);
    }
    ASSERT_EQ(reads, touched) << "seed " << seed;
  }
}

TEST(Describe, JsonKeysComeInOrder) {
  const Example e;
  const nlohmann::ordered_json j = nlohmann::ordered_json::parse(plan::describe_json(e.planned.view, e.spec));
  std::vector<std::string> keys;
  for (const auto& [key, value] : j.items()) keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"policy", "num_ctas", "num_requests", "total_tokens", "num_qo_heads", "num_kv_heads",
                                            "num_levels", "chunk_cap", "split_tokens", "scratch_rows", "graph_key", "cost_total",
                                            "cost_max", "balance", "classes", "cta_load", "groups", "work_items", "merge_units"}));
}

TEST(Describe, TextSumsUp) {
  const Example e;
  const std::string text = plan::describe_text(e.planned.view, e.spec);
  EXPECT_EQ(text, plan::describe_text(e.planned.view, e.spec));
  EXPECT_EQ(text.rfind("stream: 12 requests, 12 query tokens, 8/2 heads, 1 level on 4 CTAs\n", 0), 0u) << text;
  EXPECT_NE(text.find(plan::grouped(e.planned.header().cost_max)), std::string::npos) << text;
  uint64_t cut = 0;
  const plan::PlanFacts facts = plan::facts_of(e.planned.view, e.spec);
  for (const plan::ItemFacts& f : facts.items) cut += f.cut_before || f.cut_after;
  EXPECT_GT(cut, 0u);
  EXPECT_NE(text.find(plan::grouped(cut) + " are parts of a cut tile"), std::string::npos) << text;
}

TEST(Describe, TextOfABigPlanIsShort) {
  const AttentionSpec spec = test::small_spec(32, 8);
  TestBatch b(std::vector<int32_t>(500, 1), std::vector<int32_t>(500, 777), spec);
  const Planned p(spec, test::capacity_of(b), test::gpu_config(132, Policy::stream), b.batch);
  const std::string text = plan::describe_text(p.view, spec);
  EXPECT_LT(count(text, "\n"), 35u) << text;
  EXPECT_NE(text.find("of 132 CTAs"), std::string::npos) << text;
}

/// Every tag closes, in order; attributes are quoted; no stray '<' or '&'.
std::string xml_fault(const std::string& text) {
  std::vector<std::string> open;
  for (size_t at = 0; at < text.size();) {
    const size_t tag = text.find('<', at);
    if (text.substr(at, tag - at).find_first_of("&>") != std::string::npos) return "stray character at " + std::to_string(at);
    if (tag == std::string::npos) break;
    const size_t end = text.find('>', tag);
    if (end == std::string::npos) return "open tag at " + std::to_string(tag);
    const std::string inside = text.substr(tag + 1, end - tag - 1);
    if (inside.find('<') != std::string::npos || count(inside, "\"") % 2 != 0) return "bad tag: " + inside;
    const std::string name = inside.substr(0, inside.find_first_of(" /", 1));
    if (inside[0] == '/') {
      if (open.empty() || "/" + open.back() != inside) return "closes nothing: " + inside;
      open.pop_back();
    } else if (inside.back() != '/') {
      open.push_back(name);
    }
    at = end + 1;
  }
  return open.empty() ? "" : "never closed: " + open.back();
}

TEST(Describe, PictureIsWellFormedAndWhole) {
  const Example e;
  const std::string svg = plan::describe_svg(e.planned.view, e.spec);
  EXPECT_EQ(svg, plan::describe_svg(e.planned.view, e.spec));
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_EQ(count(svg, "<title>"), size_t(e.planned.header().num_items));
  EXPECT_NE(svg.find("stream on 4 CTAs, balance 1.0"), std::string::npos);
  size_t merging = 0;
  for (const plan::ItemFacts& f : plan::facts_of(e.planned.view, e.spec).items) merging += f.merges > 0;
  EXPECT_GT(merging, 0u);
  EXPECT_EQ(count(svg, "<circle"), merging + 1);  // and the legend's
}

TEST(Describe, EveryKindOfPlanCanBeDrawn) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    test::RandomCase c;
    test::make_random(seed, c);
    const Planned p(c.spec, c.capacity, c.config, c.b.batch);
    ASSERT_EQ(xml_fault(plan::describe_svg(p.view, c.spec)), "") << "seed " << seed;
    ASSERT_FALSE(plan::describe_text(p.view, c.spec).empty());
  }
}

TEST(Describe, ColoursDiffer) {
  std::set<std::string> seen;
  for (int32_t r = 0; r < 300; ++r) EXPECT_TRUE(seen.insert(plan::hex(plan::request_colour(r))).second) << r;
  for (int32_t r = 0; r < 300; ++r) {
    const plan::Colour a = plan::request_colour(r), b = plan::request_colour(r + 1);
    EXPECT_GT(std::abs(a.r - b.r) + std::abs(a.g - b.g) + std::abs(a.b - b.b), 60) << r;
  }
}

TEST(Describe, NumbersAsText) {
  EXPECT_EQ(plan::grouped(0), "0");
  EXPECT_EQ(plan::grouped(999), "999");
  EXPECT_EQ(plan::grouped(1234567), "1,234,567");
  EXPECT_EQ(plan::ratio(313 * 4, 1250), "1.002");
  EXPECT_EQ(plan::ratio(19999, 10000), "2.000");
  EXPECT_EQ(plan::ratio(5, 0), "1.000");
  EXPECT_EQ(plan::px(1250), "12.5");
  EXPECT_EQ(plan::px(-7), "-0.07");
  EXPECT_EQ(plan::axis_ticks(0), (std::vector<uint64_t>{0}));
  EXPECT_EQ(plan::axis_ticks(313), (std::vector<uint64_t>{0, 50, 100, 150, 200, 250, 300}));
}

TEST(Policies, HaveNames) {
  std::set<std::string> names;
  for (int32_t p = 0; p < kNumPolicies; ++p) names.insert(name_of(Policy(p)));
  EXPECT_EQ(names.size(), size_t(kNumPolicies));
  EXPECT_EQ(names.count("unknown"), 0u);
  for (const int32_t p : {-1, kNumPolicies, INT32_MAX}) EXPECT_STREQ(name_of(Policy(p)), "unknown");
}

}  // namespace
}  // namespace kvloom
