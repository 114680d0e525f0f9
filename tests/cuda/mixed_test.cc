// Steps of few rows and many in one launch on Hopper (device/mixed): a CTA goes from items of one kind to those of the other and back.
#include "tests/cuda/captured.h"
#include "tests/cuda/hopper_fixture.h"

#include <algorithm>
#include <cstdio>

namespace kvloom::test {
namespace {

struct Layout {
  Storage storage;
  int32_t page_size;
  std::string name() const { return storage == Storage::ragged ? "ragged" : "pages of " + std::to_string(page_size); }
};
constexpr Layout kLayouts[] = {{Storage::paged, 1}, {Storage::paged, 8}, {Storage::paged, 16}, {Storage::paged, 64}, {Storage::ragged, 1}};

/// Few rows and many, rows without keys, keys without rows.
std::vector<Request> both_kinds() { return {{1, 200}, {70, 300}, {2, 0}, {1, 77}, {33, 33}, {3, 500}, {0, 10}, {40, 0}, {1, 1}, {90, 411}, {1, 16}}; }

class GpuMixed : public HopperEngine {
 protected:
  /// The first `tokens` keys of so many requests after each other, or of all, are in the pages of the first one's.
  static void share(Step& step, int32_t tokens, size_t readers = SIZE_MAX) {
    for (size_t r = 1; r < step.requests.size(); ++r) {
      std::copy_n(step.pages.begin() + step.list_indptr[r - r % readers], tokens / step.spec.page_size, step.pages.begin() + step.list_indptr[r]);
    }
  }

  /// Steps of `requests` that share their first `tokens` keys so, in pages of several sizes, on few CTAs and many, with variants: right, and with two
  /// levels. `more`: what else is asked of each.
  template <class F>
  void expect_levels(const std::vector<Request>& requests, int32_t tokens, size_t readers, F&& more) {
    for (const Layout& layout : {Layout{Storage::paged, 1}, Layout{Storage::paged, 16}, Layout{Storage::paged, 64}}) {
      for (const int32_t ctas : {1, 5, 20}) {
        for (const int variant : {0, 1, 2}) {
          AttentionSpec spec = hopper_spec(layout.storage, layout.page_size, 2, 8);
          spec.variant.alibi = variant == 1, spec.variant.soft_cap = variant == 2 ? 20.0f : 0.0f;
          Step step = make_step(requests, spec);
          share(step, tokens, readers);
          Capacity capacity = step.capacity();
          capacity.max_level_rows = 64;
          const std::string what = layout.name() + ", " + std::to_string(ctas) + " CTAs, variant " + std::to_string(variant);
          const PlanHeader header = expect_right(step, options("sm90", ctas), capacity, what);
          EXPECT_EQ(header.num_levels, 2) << what;
          more(header, what);
        }
      }
    }
  }
};

TEST_F(GpuMixed, EveryLayout) {
  for (const Layout& layout : kLayouts) {
    for (const int32_t ctas : {1, 4, 13}) {
      Step step = make_step(both_kinds(), hopper_spec(layout.storage, layout.page_size, 2, 8), uint32_t(ctas));
      expect_right(step, options("sm90", ctas), layout.name() + ", " + std::to_string(ctas) + " CTAs");
    }
  }
}

// Both kinds are cut, and parts of one unit meet from CTAs that did other kinds before.
TEST_F(GpuMixed, PartsOfBothKinds) {
  for (const Layout& layout : {Layout{Storage::paged, 1}, Layout{Storage::paged, 16}, Layout{Storage::ragged, 1}}) {
    for (const Policy policy : {Policy::automatic, Policy::stream, Policy::heap}) {
      Step step = make_step({{1, 2500}, {20, 2000}, {3, 900}, {50, 1500}}, hopper_spec(layout.storage, layout.page_size, 1, 4));
      EngineOptions o = options("sm90", 9);
      o.policy = policy;
      const PlanHeader header = expect_right(step, o, layout.name() + ", " + name_of(policy));
      EXPECT_GE(header.num_units, 2) << "nothing was cut";
    }
  }
}

TEST_F(GpuMixed, Variants) {
  const std::vector<std::pair<const char*, void (*)(VariantSpec&)>> variants = {
      {"mask", [](VariantSpec& v) { v.custom_mask = true; }},
      {"ALiBi", [](VariantSpec& v) { v.alibi = true; }},
      {"soft cap", [](VariantSpec& v) { v.soft_cap = 5.0f; }},
      {"window", [](VariantSpec& v) { v.range.left = 60; }},
      {"not causal", [](VariantSpec& v) { v.range.causal = false; }},
      {"sink", [](VariantSpec& v) { v.sink = true; }},
  };
  for (const auto& [name, set] : variants) {
    for (const Layout& layout : {Layout{Storage::paged, 1}, Layout{Storage::paged, 16}}) {
      for (const int32_t ctas : {1, 6}) {
        AttentionSpec spec = hopper_spec(layout.storage, layout.page_size, 2, 8);
        set(spec.variant);
        Step step = make_step(both_kinds(), spec);
        expect_right(step, options("sm90", ctas), std::string(name) + ", " + layout.name() + ", " + std::to_string(ctas) + " CTAs");
      }
    }
  }
}

// A shared prefix has many rows where the requests that read it have few each: its items come first in a CTA, and what they leave is merged with
// that of the others.
TEST_F(GpuMixed, SharedPrefixes) {
  std::vector<Request> requests;
  for (int i = 0; i < 12; ++i) requests.push_back({1 + i % 2, 512 + 17 * i + 2});
  requests.push_back({30, 590});
  expect_levels(requests, 512, requests.size(), [](const PlanHeader&, const std::string&) {});
}

/// Families of four whose rows, with a group of four heads, are a tile of few rows; each request goes on by itself for 1 to 200 keys.
std::vector<Request> fours(int families, int32_t shared) {
  std::vector<Request> requests;
  for (int i = 0; i < 4 * families; ++i) requests.push_back({1, shared + 1 + i * 53 % 200});
  return requests;
}

// Prefixes of few readers have few rows like everything below them, and run attend_mixed all the same: items of a CTA arrive together there.
TEST_F(GpuMixed, LevelsOfFewRows) {
  expect_levels(fours(3, 640), 640, 4, [&](const PlanHeader& header, const std::string& what) {
    EXPECT_GE(header.num_units, 12) << what;
    if (gpu.is_fake()) {
      EXPECT_EQ(gpu.last_entry(), "attend_mixed") << what;
    }
  });
}

/// One level of groups, each of `tokens` query tokens one after the other, whoever's they are; every group reads the pages of the request that its first is of.
struct OneLevel {
  std::vector<int32_t> tokens;
  std::vector<LevelGroup> groups;

  OneLevel(Step& step, int32_t a_group) {
    for (int32_t t = 0; t < step.qo_indptr.back(); ++t) tokens.push_back(t);
    for (size_t r = 0; r < step.requests.size(); ++r) {
      for (int32_t t = step.qo_indptr[r]; t < step.qo_indptr[r + 1]; ++t) {
        if (t % a_group != 0) continue;
        LevelGroup g;
        g.list_begin = step.list_indptr[r], g.kv_end = step.requests[r].kv_len;
        g.tokens = {tokens.data() + t, std::min(a_group, step.qo_indptr.back() - t)};
        groups.push_back(g);
      }
    }
    step.batch.groups = {groups.data(), int64_t(groups.size())};
  }
};

// What rows requests have does not say what rows groups have, in one level either: what runs attend_mixed is planned for it.
TEST_F(GpuMixed, GroupsOfManyRowsInOneLevel) {
  for (const int32_t requests : {8, 15}) {  // 15: the last group has few rows
    const AttentionSpec spec = hopper_spec(Storage::paged, 16, 2, 8);
    Step step = make_step(std::vector<Request>(size_t(requests), Request{1, 700}), spec);
    for (size_t r = 0; r < step.requests.size(); ++r) {  // groups of eight read one list
      std::copy_n(step.pages.begin() + step.list_indptr[0], 700 / 16 + 1, step.pages.begin() + step.list_indptr[r]);
    }
    const OneLevel level(step, requests == 8 ? 8 : 12);
    const PlanHeader header = expect_right(step, options("sm90", 5), std::to_string(requests));
    EXPECT_EQ(header.num_levels, 1);
    const Engine engine(spec, step.capacity(), options("sm90", 5));
    EXPECT_EQ(header.classes[0].cost_per_token, engine.config().classes[0].cost_per_token) << "planned for attend_memory";
    if (gpu.is_fake()) {
      EXPECT_EQ(gpu.last_entry(), "attend_mixed");
    }
  }
}

// ... and of many rows in groups of few, without levels, are a step like any of few rows: the same kernel where the graph is the same.
TEST_F(GpuMixed, GroupsOfFewRowsInOneLevel) {
  const AttentionSpec spec = hopper_spec(Storage::paged, 16, 2, 8);
  use_kernels_for(spec);
  Engine engine(spec, {16, 64, 16000, 64, 64}, options("sm90", 5));
  Step few = make_step({{1, 700}, {2, 300}, {1, 40}}, spec), many = make_step({{40, 300}}, spec);
  const OneLevel level(many, 4);
  std::vector<std::string> entries;
  std::vector<uint64_t> keys;
  for (Step* step : {&few, &many}) {
    const Plan plan = engine.plan(step->batch);
    EXPECT_EQ(plan.view().header->num_levels, 1);
    GpuStep g(*step);
    engine.run(plan, g.tensors);
    expect_device_right(g, *step);
    keys.push_back(plan.graph_key());
    if (gpu.is_fake()) entries.push_back(gpu.last_entry());
  }
  EXPECT_EQ(keys[0], keys[1]) << "if it is another graph, it may be another kernel";
  if (gpu.is_fake()) {
    EXPECT_EQ(entries, (std::vector<std::string>{"attend_memory", "attend_memory"}));
  }
}

// Family sm80 has two kernels of the same tiles for few rows alone: which of them runs a step is not in the plan, but it is another graph.
TEST_F(GpuMixed, AGraphIsOneKernels) {
  const AttentionSpec spec = hopper_spec(Storage::paged, 16, 2, 8);
  Engine engine(spec, {16, 64, 1000000, 64, 64}, options("sm80", 5));
  Step few = make_step({{1, 700}, {2, 300}, {1, 40}}, spec), many = make_step({{40, 300}}, spec);
  const OneLevel level(many, 4);
  const Plan a = engine.plan(few.batch), b = engine.plan(many.batch);
  EXPECT_EQ(a.view().header->graph_key, b.view().header->graph_key) << "the plan knows no kernels";
  EXPECT_NE(a.graph_key(), b.graph_key());
  for (const Plan* plan : {&a, &b}) {  // the key that is printed
    char key[32];
    std::snprintf(key, sizeof key, "%#018llx", static_cast<unsigned long long>(plan->graph_key()));
    EXPECT_NE(plan->explain().find(key), std::string::npos) << plan->explain();
    EXPECT_NE(plan->json().find(key), std::string::npos);
  }
  const Plan again = engine.plan(make_step({{1, 900}}, spec).batch);
  EXPECT_EQ(again.graph_key(), a.graph_key());
}

// Many rows alone run kernels of their own: clusters whose boxes land in two CTAs, or, where pages are too small for boxes, CTAs that fetch rows.
TEST_F(GpuMixed, ManyRowsAloneHaveKernelsOfTheirOwn) {
  for (const auto& [layout, alone] : {std::pair(Layout{Storage::paged, 1}, "attend_small"), {Layout{Storage::paged, 2}, "attend_small"}, {Layout{Storage::paged, 4}, "attend_small"},
                                      {Layout{Storage::paged, 16}, "attend_compute"}, {Layout{Storage::ragged, 1}, "attend_compute"}}) {
    const std::pair<std::vector<Request>, const char*> steps[] = {
        {{{70, 300}, {33, 33}, {90, 411}}, alone}, {{{70, 300}, {1, 77}}, "attend_mixed"}, {{{1, 300}, {2, 77}}, "attend_memory"}};
    for (const auto& [requests, entry] : steps) {
      Step step = make_step(requests, hopper_spec(layout.storage, layout.page_size, 2, 8));
      expect_right(step, options("sm90", 5), layout.name() + ", " + entry);
      if (gpu.is_fake()) {
        EXPECT_EQ(gpu.last_entry(), entry) << layout.name();
      }
    }
  }
}

// Steps of one kind, of both, and of none follow each other through one plan and its graph. (The last has no more pages than the one before: a graph
// knows how many there were.)
TEST_F(GpuMixed, GraphsOfChangingKinds) {
  for (const Layout& layout : {Layout{Storage::paged, 1}, Layout{Storage::paged, 16}}) {
    const AttentionSpec spec = hopper_spec(layout.storage, layout.page_size, 2, 8);
    use_kernels_for(spec);
    Engine engine(spec, {8, 300, 4000, 0, 0}, options("sm90", 5));
    Step largest = make_step({{200, 2000}, {97, 1900}, {1, 20}, {1, 20}, {1, 20}}, spec);
    Captured graph(engine, largest);
    const std::vector<std::vector<Request>> steps = {
        {{60, 700}, {1, 900}, {1, 17}, {2, 300}},  {{1, 1200}, {1, 40}, {1, 900}},           {{1, 300}, {100, 100}, {1, 64}, {31, 999}},
        {{120, 1300}, {40, 170}},                  {{1, 128}, {1, 129}, {77, 777}, {0, 50}}, {{0, 5}, {0, 0}},
        {{3, 500}, {64, 64}, {1, 1500}, {20, 20}}, {{90, 90}, {1, 1900}},
    };
    for (size_t i = 0; i < steps.size(); ++i) {
      Step s = make_step(steps[i], spec, uint32_t(i + 5));
      graph.replay(s, layout.name() + ", step " + std::to_string(i));
    }
    EXPECT_GE(graph.captures, 4) << "kinds of steps have graphs of their own";
  }
}

// Few rows with levels and without are graphs of two kernels.
TEST_F(GpuMixed, GraphsWithLevelsAndWithout) {
  const AttentionSpec spec = hopper_spec(Storage::paged, 16, 2, 8);
  use_kernels_for(spec);
  Engine engine(spec, {16, 16, 16000, 64, 0}, options("sm90", 5));
  Step largest = make_step(fours(4, 640), spec);
  Captured graph(engine, largest);
  for (const bool shared : {true, false}) {
    for (const int families : {4, 3, 2, 4}) {  // a graph knows how many pages there were
      Step s = make_step(fours(families, 640), spec, uint32_t(families));
      if (shared) share(s, 640, 4);
      graph.replay(s, std::to_string(families) + (shared ? " families" : " families that share nothing"));
    }
  }
  EXPECT_EQ(graph.captures, 2) << "one with levels, and again one without";
}

}  // namespace
}  // namespace kvloom::test
