// The body of the planner's fuzzer on inputs made at random, the same ones every time.
#include "tests/fuzz/plan_fuzz_body.h"

#include <gtest/gtest.h>

#include <random>

namespace kvloom {
namespace {

TEST(PlanFuzz, RandomInputs) {
  // KVLOOM_FUZZ_CASES: how many, for a longer run.
  const char* wanted = std::getenv("KVLOOM_FUZZ_CASES");
  const int cases = wanted ? std::atoi(wanted) : 3000;
  std::mt19937 random(29);
  std::vector<uint8_t> bytes;
  int planned = 0;
  for (int i = 0; i < cases; ++i) {
    bytes.resize(40 + random() % 400);
    for (uint8_t& b : bytes) b = uint8_t(random());
    planned += plan::fuzz_plan(bytes.data(), bytes.size());
  }
  EXPECT_GT(planned, cases / 4);           // the planner is reached
  EXPECT_LT(planned, cases - cases / 20);  // and so are its refusals
}

}  // namespace
}  // namespace kvloom
