// Every deliberate fault is put into random cases, and the check finds it.
#include "cli/check/check_run.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace kvloom::check {
namespace {

class Fault : public testing::TestWithParam<Sabotage> {};

// Some faults change nothing in some cases: a window longer than the cache, a last key that a mask hides, a cap far above the logits.
double least_share_of(Sabotage s) {
  switch (s) {
    case Sabotage::drop_item:
    case Sabotage::lse_base_2:
      return 1.0;
    case Sabotage::window_off_by_one:
      return 0.3;
    default:
      return 0.6;
  }
}

TEST_P(Fault, IsFound) {
  CheckOptions options;
  options.seed = 5;
  options.of_a_case.sabotage = GetParam();
  int spoiled = 0, found = 0;
  for (int64_t i = 0; i < 40; ++i) {
    const CaseResult r = run_case(case_of(options, i), options.of_a_case);
    spoiled += r.sabotaged;
    found += r.sabotaged && !r.errors.fault.empty();
    // A case that could not be spoiled is right; one that is refused for how it was spoiled proves nothing.
    if (!r.sabotaged) {
      EXPECT_EQ(r.errors.fault, "") << "case 5:" << i;
    }
  }
  EXPECT_GE(spoiled, 8);
  EXPECT_GE(found, least_share_of(GetParam()) * spoiled) << "of " << spoiled;
}

std::string name_of_fault(const testing::TestParamInfo<Sabotage>& info) {
  std::string name = word_of(info.param);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Sabotage, Fault, testing::ValuesIn(all_sabotages()), name_of_fault);

}  // namespace
}  // namespace kvloom::check
