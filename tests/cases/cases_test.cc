// Every case of the table under every schedule.
#include "cli/check/case_json.h"
#include "cli/check/run_case.h"

#include <gtest/gtest.h>

#include <set>

namespace kvloom::check {
namespace {

const std::vector<Case>& table() {
  static const std::vector<Case> cases = read_cases(std::string(KVLOOM_SOURCE_DIR) + "/tests/cases/cases.json");
  return cases;
}

class CaseTable : public testing::TestWithParam<size_t> {};

TEST_P(CaseTable, AgreesWithRefUnderEverySchedule) {
  const Case& c = table()[GetParam()];
  const CaseResult r = run_case(c);
  EXPECT_EQ(r.errors.fault, "") << describe(c) << ", policy " << name_of(r.failed.policy) << ", " << r.failed.ctas << " CTAs";
  EXPECT_GE(r.runs, 18 * 3);
}

INSTANTIATE_TEST_SUITE_P(All, CaseTable, testing::Range<size_t>(0, table().size()),
                         [](const auto& info) { return table()[info.param].name; });

TEST(CaseTable, NamesAreUnique) {
  std::set<std::string> names;
  for (const char* file : {"cases.json", "bugs.json"}) {
    for (const Case& c : read_cases(std::string(KVLOOM_SOURCE_DIR) + "/tests/cases/" + file)) {
      EXPECT_TRUE(names.insert(c.name).second) << c.name;
    }
  }
  EXPECT_GE(names.size(), 150u);
}

}  // namespace
}  // namespace kvloom::check
