// A packed plan says the same as the plan, in fewer bytes.
#include "kvloom/plan/packed.h"
#include "random_batches.h"

#include <gtest/gtest.h>

#include <cstring>

namespace kvloom {
namespace {

template <class T>
void expect_same(const Span<T>& a, const Span<T>& b, const char* what) {
  ASSERT_EQ(a.size, b.size) << what;
  EXPECT_EQ(a.size == 0 ? 0 : std::memcmp(a.data, b.data, size_t(a.size) * sizeof a[0]), 0) << what;
}

TEST(Packed, SaysTheSame) {
  int64_t all = 0, packed = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    test::RandomCase c;
    test::make_random(seed, c);
    const test::Planned planned(c.spec, c.capacity, c.config, c.b.batch);
    const PlanView& v = planned.view;
    std::vector<uint64_t> out(size_t(v.header->total_bytes) / 8, ~uint64_t(0));
    const int64_t bytes = plan::write_packed(v, reinterpret_cast<char*>(out.data()));
    ASSERT_LE(bytes, v.header->total_bytes) << "seed " << seed;
    all += v.header->total_bytes;
    packed += bytes;
    for (size_t i = size_t(bytes) / 8; i < out.size(); ++i)
      ASSERT_EQ(out[i], ~uint64_t(0)) << "seed " << seed << ": written behind its end";
    const PlanView p = view_plan(out.data());
    EXPECT_EQ(p.header->total_bytes, bytes);
    EXPECT_EQ(p.header->graph_key, v.header->graph_key);
    EXPECT_EQ(p.header->num_ctas, v.header->num_ctas);
    expect_same(p.groups, v.groups, "groups");
    expect_same(p.row_entries, v.row_entries, "row entries");
    expect_same(p.cta_indptr, v.cta_indptr, "cta_indptr");
    expect_same(p.items, v.items, "items");
    expect_same(p.units, v.units, "units");
    expect_same(p.entries, v.entries, "entries");
    expect_same(p.touches, v.touches, "touches");
  }
  EXPECT_LT(packed * 2, all);
}

TEST(Packed, WhatCtasBeginWith) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    test::RandomCase c;
    test::make_random(seed, c);
    const test::Planned planned(c.spec, c.capacity, c.config, c.b.batch);
    const PlanView& v = planned.view;
    int32_t items = 0;
    for (int32_t cta = 0; cta < v.header->num_ctas; ++cta) {
      const CtaStart s = cta_start(v, cta);
      if (s.items > 0) {
        EXPECT_EQ(std::memcmp(&s.item, &v.items[items], sizeof s.item), 0) << "seed " << seed << ", CTA " << cta;
        EXPECT_EQ(std::memcmp(&s.group, &v.groups[v.items[items].group], sizeof s.group), 0) << "seed " << seed << ", CTA " << cta;
      }
      items += s.items;
    }
    EXPECT_EQ(items, v.header->num_items) << "seed " << seed;
  }
}

}  // namespace
}  // namespace kvloom
