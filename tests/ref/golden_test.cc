// REF against the committed answers of tests/golden/make_golden.py: another language, another author's formulas, dense matrices.
#include "cli/check/case_json.h"
#include "cli/check/materialise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>

namespace kvloom::check {
namespace {

const std::string kFolder = std::string(KVLOOM_SOURCE_DIR) + "/tests/golden/";

TEST(Golden, RefMatchesTheIndependentScriptToTwelveDigits) {
  const std::vector<Case> cases = read_cases(kFolder + "cases.json");
  std::ifstream file(kFolder + "golden.json");
  const auto golden = nlohmann::ordered_json::parse(file)["cases"];
  ASSERT_EQ(cases.size(), golden.size());
  ASSERT_GE(cases.size(), 35u);
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(cases[i].name);
    ASSERT_EQ(golden[i]["name"], cases[i].name);
    const CaseData data(cases[i]);
    std::vector<double> o, lse;
    data.reference(o, lse);
    ASSERT_EQ(golden[i]["o"].size(), o.size());
    ASSERT_EQ(golden[i]["lse"].size(), lse.size());
    double largest = 0.0;
    for (size_t j = 0; j < o.size(); ++j) {
      const double wanted = golden[i]["o"][j];
      ASSERT_NEAR(o[j], wanted, 1e-12 * std::fmax(1.0, std::fabs(wanted))) << "o " << j;
      largest = std::fmax(largest, std::fabs(wanted));
    }
    EXPECT_GT(largest, 0.0);
    for (size_t j = 0; j < lse.size(); ++j) {
      if (golden[i]["lse"][j].is_null()) {
        ASSERT_EQ(lse[j], -std::numeric_limits<double>::infinity()) << "lse " << j;
      } else {
        const double wanted = golden[i]["lse"][j];
        ASSERT_NEAR(lse[j], wanted, 1e-12 * std::fmax(1.0, std::fabs(wanted))) << "lse " << j;
      }
    }
  }
}

}  // namespace
}  // namespace kvloom::check
