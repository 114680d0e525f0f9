// Every case of the table under every schedule.
#include "cli/check/case_json.h"
#include "cli/check/run_case.h"
#include "kvloom/cpu/target.h"

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

// The longest sums, on every instruction set that this machine has.
TEST(CaseTable, LongHeadsAreRightOnEveryTarget) {
  int64_t runs = 0;
  for (const Case& c : table()) {
    if (c.spec.head_dim_qk < 512 || c.spec.q_dtype != DType::f32 || c.spec.kv_dtype != DType::f32) continue;
    for (int t = 0; t < cpu::kNumTargets; ++t) {
      if (!cpu::is_available(cpu::Target(t))) continue;
      CaseOptions options;
      options.schedules = {{Policy::none, 1, LevelMode::off}, {Policy::automatic, 7, LevelMode::automatic}};
      options.cpu_target = cpu::name_of(cpu::Target(t));
      const CaseResult r = run_case(c, options);
      EXPECT_EQ(r.errors.fault, "") << c.name << " on " << options.cpu_target;
      runs += r.runs;
    }
  }
  EXPECT_GT(runs, 0);
}

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
