// Every plan covers every (row, key) once: thousands of random batches under every policy, against a brute-force reading of the plan.
#include "kvloom/plan/validate.h"
#include "random_batches.h"

#include <gtest/gtest.h>

namespace kvloom {
namespace {

TEST(Cover, RandomBatches) {
  // KVLOOM_PLAN_CASES: how many, for a longer run.
  const char* wanted = std::getenv("KVLOOM_PLAN_CASES");
  const uint64_t cases = wanted ? std::strtoull(wanted, nullptr, 10) : 4000;
  for (uint64_t seed = 0; seed < cases; ++seed) {
    test::RandomCase c;
    test::make_random(seed, c);
    try {
      const test::Planned p(c.spec, c.capacity, c.config, c.b.batch);
      ASSERT_EQ(test::PlanExecutor(p.view, c.spec).check(), "") << "seed " << seed << " policy " << int(c.config.policy);
      ASSERT_EQ(plan::validate_plan(p.buffer.data, p.buffer.bytes, c.spec, seed % 8 == 0), "") << "seed " << seed;
    } catch (const std::exception& e) {
      FAIL() << "seed " << seed << " policy " << int(c.config.policy) << ": " << e.what();
    }
  }
}

}  // namespace
}  // namespace kvloom
