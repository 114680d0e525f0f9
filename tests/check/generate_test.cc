// The random cases themselves: reproducible, everywhere in the input space, and true to what they say about memory.
#include "cli/check/generate.h"
#include "cli/check/case_json.h"
#include "cli/check/coverage.h"
#include "cli/check/materialise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace kvloom::check {
namespace {

TEST(RandomCase, IsAFunctionOfItsTwoNumbers) {
  for (int64_t i = 0; i < 50; ++i) {
    EXPECT_EQ(case_to_json(random_case(7, i)), case_to_json(random_case(7, i)));
    EXPECT_NE(case_to_json(random_case(7, i)), case_to_json(random_case(8, i)));
  }
}

TEST(RandomCase, SurvivesJson) {
  for (int64_t i = 0; i < 200; ++i) {
    const nlohmann::ordered_json j = case_to_json(random_case(3, i));
    EXPECT_EQ(case_to_json(case_from_json(nlohmann::ordered_json::parse(j.dump()))), j);
  }
}

TEST(RandomCase, AThousandOfThemReachTheWholeInputSpace) {
  std::map<std::string, int> seen;
  for (int64_t i = 0; i < 1000; ++i) {
    for (const std::string& feature : features_of(random_case(1, i))) ++seen[feature];
  }
  for (const std::string& feature : all_features()) EXPECT_GE(seen[feature], 3) << feature;
}

TEST(RandomCase, StaysAffordable) {
  int64_t total = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    const int64_t work = work_of(random_case(1, i));
    EXPECT_LE(work, 40000000) << i;
    total += work;
  }
  EXPECT_LE(total, int64_t(4000000) * 1000);
}

// Everything that no row keeps is NaN in memory. If REF, which reads only what is kept, met a NaN, the case would lie about its own input.
TEST(RandomCase, WhatARowKeepsIsFinite) {
  std::vector<double> o, lse;
  int64_t empty_rows = 0;
  for (int64_t i = 0; i < 300; ++i) {
    const Case c = random_case(5, i);
    if (work_of(c) > 2000000) continue;
    const CaseData data(c);
    data.reference(o, lse);
    for (const double x : o) ASSERT_TRUE(std::isfinite(x)) << c.name << " " << describe(c);
    for (const double x : lse) {
      ASSERT_FALSE(std::isnan(x)) << c.name << " " << describe(c);
      empty_rows += std::isinf(x);
    }
  }
  EXPECT_GT(empty_rows, 100);
}

TEST(RandomCase, TheSameNumbersLieInEveryLayout) {
  std::vector<double> o, lse, other_o, other_lse;
  for (int64_t i = 0; i < 60; ++i) {
    Case c = random_case(9, i);
    if (work_of(c) > 2000000) continue;
    CaseData(c).reference(o, lse);
    c.layout = c.layout == KvLayout::nhd ? KvLayout::hnd : KvLayout::nhd;
    if (c.placement != Placement::mla) c.placement = c.placement == Placement::padded ? Placement::kv_in_page : Placement::padded;
    c.q_view = QView::head_major;
    c.index64 = !c.index64;
    CaseData(c).reference(other_o, other_lse);
    EXPECT_EQ(o, other_o) << c.name;
    EXPECT_EQ(lse, other_lse) << c.name;
  }
}

TEST(CaseJson, NamesWhatItDoesNotKnow) {
  auto error_of = [](const char* text) {
    try {
      case_from_json(nlohmann::ordered_json::parse(text));
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(error_of(R"({"name": "a", "colour": 1})").find("colour"), std::string::npos);
  EXPECT_NE(error_of(R"({"name": "a", "spec": {"kv_dtype": "int4"}})").find("int4"), std::string::npos);
  EXPECT_NE(error_of(R"({"name": "a", "q_len": "one"})").find("q_len"), std::string::npos);
  EXPECT_NE(error_of("[]").find("array"), std::string::npos);
}

}  // namespace
}  // namespace kvloom::check
