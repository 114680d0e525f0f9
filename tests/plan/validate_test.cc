// validate_plan accepts sound plans and names the fault of every broken one. The plans here are made by hand (naive_plan.h).
#include "kvloom/plan/validate.h"

#include "tests/plan/batches.h"
#include "tests/plan/naive_plan.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

namespace kvloom {
namespace {

using test::NaiveOptions;
using test::NaivePlanner;
using test::PlanParts;

AttentionSpec make_spec(int32_t qo_heads, int32_t kv_heads, KeyRange range) {
  AttentionSpec spec;
  spec.num_qo_heads = qo_heads;
  spec.num_kv_heads = kv_heads;
  spec.head_dim_qk = spec.head_dim_vo = 64;
  spec.variant.range = range;
  return spec;
}

RowGroup flat_group(int32_t request, int32_t token_begin, int32_t q_len, int32_t kv_len) {
  RowGroup g{};
  g.row_list = -1;
  g.token_begin = token_begin;
  g.token_count = q_len;
  g.request = request;
  g.q_pos0 = kv_len - q_len;
  g.kv_end = kv_len;
  g.kv_head = -1;
  return g;
}

/// Three requests (a prefill of 40, an empty one, two decodes) where the decodes, tokens 40 and 41, share 96 keys as gathered rows.
PlanParts shared_plan(const AttentionSpec& spec, const NaiveOptions& options = {}) {
  std::vector<RowGroup> groups;
  RowGroup shared{};
  shared.row_list = 0;
  shared.token_count = 2;
  shared.kv_end = 96;
  shared.kv_head = -1;
  groups.push_back(shared);
  groups.push_back(flat_group(0, 0, 40, 150));
  groups.push_back(flat_group(2, 40, 1, 200));
  groups.push_back(flat_group(3, 41, 1, 97));
  groups.push_back(flat_group(4, 42, 2, 0));  // rows that keep nothing are written all the same
  for (int i : {1, 2, 3, 4}) groups[i].level = 1;
  for (int i : {2, 3}) {
    groups[i].list_begin = 6, groups[i].kv_end -= 96, groups[i].kv_pos0 = groups[i].kv_index0 = 96;
  }
  return NaivePlanner(spec, options).plan(groups, {{41, 3, 0, 96, 0}, {40, 2, 0, 199, 0}}, 2, 44);
}

std::string validate(PlanParts parts, const AttentionSpec& spec, bool exhaustive = false) {
  const std::vector<uint64_t> words = parts.buffer();
  return plan::validate_plan(words.data(), int64_t(words.size() * 8), spec, exhaustive);
}

TEST(Validate, AcceptsSoundPlans) {
  for (KeyRange range : {KeyRange{}, KeyRange{true, -1, -1}, KeyRange{true, 30, -1}, KeyRange{false, 5, 7}}) {
    for (int32_t kv_heads : {1, 2, 4}) {
      for (int32_t heads_per_item : {1, 2}) {
        const AttentionSpec spec = make_spec(4, kv_heads, range);
        NaiveOptions options;
        options.heads_per_item = heads_per_item;
        for (int32_t chunk : {16, 64, 1024}) {
          options.chunk = chunk;
          EXPECT_EQ(validate(shared_plan(spec, options), spec, true), "") << kv_heads << " heads, chunk " << chunk;
        }
      }
    }
  }
}

TEST(Validate, AcceptsItemsOfSeveralFixedChunks) {
  const AttentionSpec spec = make_spec(4, 2, {true, -1, -1});
  NaiveOptions options;
  options.split_tokens = 32;
  options.chunk = 96;
  options.heads_per_item = 2;
  PlanParts parts = shared_plan(spec, options);
  EXPECT_TRUE(std::any_of(parts.items.begin(), parts.items.end(), [&](const WorkItem& w) { return item_partials(parts.header, w) == 2; }));
  EXPECT_EQ(validate(parts, spec, true), "");
  PlanParts folded = parts;  // the same, but a later item of a row folds its chunks: the order of merges would depend on the cut
  for (WorkItem& w : folded.items) w.chunked = 0;
  EXPECT_NE(validate(folded, spec), "");
  PlanParts uncounted = parts;
  for (MergeUnit& u : uncounted.units) u.arrivals = u.entry_count;
  EXPECT_NE(validate(uncounted, spec).find("arrivals"), std::string::npos);
}

// Two rows of a shared group stand at positions 0 and 100 with a window of 20: neither sees the keys in between, and nobody computes them.
TEST(Validate, AcceptsGapsBetweenListedRows) {
  const AttentionSpec spec = make_spec(4, 1, {true, 20, -1});
  test::TestBatch b({2}, {110}, spec);
  b.q_pos = {0, 100};
  b.pages.resize(256);
  b.groups.resize(2);
  b.groups[0].kv_end = 10, b.groups[0].kv_pos0 = 30;
  b.groups[1].level = 1, b.groups[1].kv_end = 110;
  b.group_tokens = {{0, 1}, {0, 1}};
  SchedulerConfig config = test::kv_config(1, Policy::stream);
  for (KernelClass& k : config.classes) k.tile_rows = 4;
  Capacity capacity = test::capacity_of(b);
  capacity.max_kv_tokens = 120;
  capacity.max_groups = 8;
  capacity.max_level_rows = 4;
  const test::Planned planned(spec, capacity, config, b.bind());
  ASSERT_EQ(planned.header().num_groups, 2);
  for (const WorkItem& item : planned.view.items) EXPECT_EQ(item.group, 1);
  EXPECT_EQ(plan::validate_plan(planned.buffer.data, planned.buffer.bytes, spec, true), "");
}

TEST(Validate, AcceptsAnEmptyStep) {
  const AttentionSpec spec = make_spec(4, 2, {});
  EXPECT_EQ(validate(NaivePlanner(spec, {}).plan({}, {}, 1, 0), spec, true), "");
}

/// One way to break a plan, and a part of the line that must name it.
struct Break {
  const char* name;
  std::function<void(PlanParts&)> apply;
  const char* message;
};

/// An item that writes a partial, and one that does not.
WorkItem& split_item(PlanParts& p) {
  return *std::find_if(p.items.begin(), p.items.end(), [](const WorkItem& w) { return w.partial_row >= 0 && w.kv_begin > 0; });
}
WorkItem& direct_item(PlanParts& p) {
  return *std::find_if(p.items.begin(), p.items.end(), [](const WorkItem& w) { return w.partial_row < 0; });
}
MergeUnit& long_unit(PlanParts& p) {
  return *std::find_if(p.units.begin(), p.units.end(), [](const MergeUnit& u) { return u.entry_count > 1; });
}
void erase_item(PlanParts& p, size_t i) {
  p.items.erase(p.items.begin() + int64_t(i));
  for (int32_t& bound : p.cta_indptr) bound -= bound > int32_t(i);
}

const Break kBreaks[] = {
    {"magic", [](PlanParts& p) { p.header.magic ^= 1; }, "magic"},
    {"version", [](PlanParts& p) { ++p.header.version; }, "version"},
    {"status", [](PlanParts& p) { p.header.status = PlanStatus::over_capacity; }, "status"},
    {"policy", [](PlanParts& p) { p.header.policy = Policy::automatic; }, "policy"},
    {"tile of zero rows", [](PlanParts& p) { p.header.classes[1].tile_rows = 0; }, "classes[1]"},
    {"dropped first item", [](PlanParts& p) { erase_item(p, 0); }, "wanted a range from 0"},
    {"dropped last item", [](PlanParts& p) { erase_item(p, p.items.size() - 1); }, "never written"},
    {"doubled item", [](PlanParts& p) { p.items.push_back(p.items[0]), ++p.cta_indptr.back(); }, "is covered"},
    {"CTA lists not ascending", [](PlanParts& p) { std::swap(p.cta_indptr[1], p.cta_indptr[2]); }, "ascending"},
    {"item without a CTA", [](PlanParts& p) { --p.cta_indptr.back(); }, "last bound"},
    {"one key too few", [](PlanParts& p) { --p.items.back().kv_end; }, "keys"},
    {"group index", [](PlanParts& p) { direct_item(p).group = 99; }, "group: got 99"},
    {"cut off the tile grid",
     [](PlanParts& p) {
       WorkItem& w = split_item(p);
       for (WorkItem& v : p.items) v.kv_end += v.group == w.group && v.row_begin == w.row_begin && v.kv_end == w.kv_begin;
       ++w.kv_begin;
     },
     "tile_kv"},
    {"window one key too wide", [](PlanParts& p) { p.groups[1].q_pos0 += 1; }, "keys"},
    {"group loses a key", [](PlanParts& p) { --p.groups[2].kv_end; }, "keys"},
    {"group sees another key", [](PlanParts& p) { ++p.groups[2].kv_end, ++p.groups[2].q_pos0; }, "in no item"},
    {"row entry of another token", [](PlanParts& p) { p.row_entries[0].token = 39; }, "not those of"},
    {"row entry twice", [](PlanParts& p) { p.row_entries[0].token = p.row_entries[1].token; }, "not those of"},
    {"swapped entries", [](PlanParts& p) { std::swap(p.entries[long_unit(p).entry_begin], p.entries[long_unit(p).entry_begin + 1]); },
     "out of order"},
    {"entry twice", [](PlanParts& p) { p.entries[long_unit(p).entry_begin + 1] = p.entries[long_unit(p).entry_begin]; }, "merged twice"},
    {"entry off by a row", [](PlanParts& p) { ++p.entries[long_unit(p).entry_begin].partial_row; }, "unit"},
    {"entry missing", [](PlanParts& p) { --long_unit(p).arrivals, --long_unit(p).entry_count; }, "partial rows"},
    {"unit loses a row", [](PlanParts& p) { --long_unit(p).row_count; }, "partial rows"},
    {"unit loses its first row",
     [](PlanParts& p) {
       MergeUnit& u = long_unit(p);
       ++u.row_begin, --u.row_count;
     },
     "not those of"},
    {"unit for another head", [](PlanParts& p) { long_unit(p).kv_head ^= 1; }, "head"},
    {"head stride", [](PlanParts& p) { ++p.entries[long_unit(p).entry_begin].head_stride; }, "head_stride"},
    {"arrival too many", [](PlanParts& p) { ++long_unit(p).arrivals; }, "arrivals"},
    {"chunked without a split", [](PlanParts& p) { split_item(p).chunked = 1; }, "chunked"},
    {"touch of a wrong unit", [](PlanParts& p) { p.touches[split_item(p).touch_begin] ^= 1; }, "touch"},
    {"touch out of range", [](PlanParts& p) { p.touches[split_item(p).touch_begin] = int32_t(p.units.size()); }, "touches unit"},
    {"touch missing", [](PlanParts& p) { --split_item(p).touch_count; }, "does not touch"},
    {"touch doubled", [](PlanParts& p) { p.touches.push_back(p.touches.back()), ++p.items.back().touch_count; }, "touch"},
    {"shared scratch rows", [](PlanParts& p) { --split_item(p).partial_row; }, "overlap"},
    {"scratch rows past the end", [](PlanParts& p) { --p.header.scratch_rows; }, "scratch rows"},
    {"partial became direct", [](PlanParts& p) { split_item(p).partial_row = -1, split_item(p).touch_count = 0; }, ""},
    {"direct became partial", [](PlanParts& p) { direct_item(p).partial_row = p.header.scratch_rows, p.header.scratch_rows += 64; },
     "partial"},
    {"a token more", [](PlanParts& p) { ++p.header.total_tokens; }, "never written"},
    {"a token less", [](PlanParts& p) { --p.header.total_tokens; }, "tokens"},
    {"two groups write the same rows", [](PlanParts& p) { p.groups[4].token_begin -= 1; }, ""},
    {"level out of range", [](PlanParts& p) { p.groups[4].level = 2; }, "level"},
    {"kernel class", [](PlanParts& p) { direct_item(p).kernel_class = 2; }, "kernel_class"},
    {"heads past the spec", [](PlanParts& p) { p.items.back().kv_head = 7; }, "KV heads"},
};

class Breaks : public testing::TestWithParam<Break> {};

TEST_P(Breaks, AreNamed) {
  const AttentionSpec spec = make_spec(4, 2, {true, -1, -1});
  PlanParts parts = shared_plan(spec);
  GetParam().apply(parts);
  const std::string fault = validate(std::move(parts), spec);
  EXPECT_NE(fault, "");
  EXPECT_NE(fault.find(GetParam().message), std::string::npos) << fault;
  EXPECT_EQ(fault.find('\n'), std::string::npos);
}
INSTANTIATE_TEST_SUITE_P(Validate, Breaks, testing::ValuesIn(kBreaks), [](const auto& info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
});

TEST(Validate, SectionsStayInsideTheBuffer) {
  const AttentionSpec spec = make_spec(4, 2, {});
  const std::vector<uint64_t> words = shared_plan(spec).buffer();
  const int64_t bytes = int64_t(words.size() * 8);
  EXPECT_EQ(plan::validate_plan(words.data(), bytes, spec), "");
  EXPECT_NE(plan::validate_plan(words.data(), bytes - 1, spec), "");
  EXPECT_NE(plan::validate_plan(words.data(), 10, spec), "");
  EXPECT_NE(plan::validate_plan(nullptr, bytes, spec), "");
  for (int64_t PlanHeader::*offset :
       {&PlanHeader::groups_offset, &PlanHeader::row_entries_offset, &PlanHeader::cta_indptr_offset, &PlanHeader::items_offset,
        &PlanHeader::units_offset, &PlanHeader::entries_offset, &PlanHeader::touches_offset}) {
    for (int64_t bad : {int64_t(-64), int64_t(0), int64_t(1), bytes, int64_t(1) << 62}) {
      std::vector<uint64_t> copy = words;
      reinterpret_cast<PlanHeader*>(copy.data())->*offset = bad;
      EXPECT_NE(plan::validate_plan(copy.data(), bytes, spec), "") << bad;
    }
  }
}

/// Any bit flipped, several at once: a line or "", never a crash (this is what the sanitizers watch).
TEST(Validate, SurvivesFlippedBits) {
  std::mt19937 random(7);
  int32_t named = 0;
  constexpr int kRounds = 6000;
  const AttentionSpec spec = make_spec(4, 2, {true, 40, -1});
  NaiveOptions options;
  options.heads_per_item = 2;
  std::vector<uint64_t> words = shared_plan(spec, options).buffer();
  const std::vector<uint64_t> sound = words;
  for (int i = 0; i < kRounds; ++i) {
    words = sound;
    for (uint32_t n = random() % 4 + 1; n > 0; --n) {
      // Every second flip in the header, which is small beside the rest.
      const uint64_t bits = (random() & 1) ? sizeof(PlanHeader) * 8 : words.size() * 64;
      const uint64_t bit = random() % bits;
      words[bit / 64] ^= uint64_t(1) << (bit % 64);
    }
    named += !plan::validate_plan(words.data(), int64_t(words.size() * 8), spec, (random() & 3) == 0).empty();
  }
  EXPECT_GT(named, kRounds / 2);
}

}  // namespace
}  // namespace kvloom
