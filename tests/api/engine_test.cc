// Engine, Plan, run, attention against REF: the plainest uses, every storage and layout, empty everything, owners and lifetimes.
#include "kvloom/api/engine.h"
#include "tests/support/step.h"

#include <gtest/gtest.h>

#include <set>
#include <sstream>

namespace kvloom::test {
namespace {

Step small_step() {
  Step s;
  s.spec = small_spec();
  s.requests = {{1, 300}, {7, 64}, {33, 33}, {1, 1}, {2, 129}};
  return s;
}

void run(Step& s, const EngineOptions& options = {}) {
  Engine engine(s.spec, s.capacity(), options);
  const Plan plan = engine.plan(s.batch);
  s.poison();
  engine.run(plan, s.tensors);
}

TEST(Engine, PagedAndRaggedAreRight) {
  for (const Storage storage : {Storage::paged, Storage::ragged}) {
    for (const Policy policy : {Policy::none, Policy::heap, Policy::stream, Policy::fill, Policy::fixed_split, Policy::automatic}) {
      Step s = small_step();
      s.spec.storage = storage;
      s.make();
      EngineOptions options;
      options.policy = policy;
      options.num_ctas = 7;
      run(s, options);
      expect_right(s, std::to_string(int(policy)));
    }
  }
}

TEST(Engine, ExplainNamesEveryKernelAndWhyItWasDeclined) {
  Step s = small_step();
  s.make();
  const Engine engine(s.spec, s.capacity());
  std::istringstream lines(engine.explain());
  std::set<std::string> chosen, declined;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("kernel   attend.")) chosen.insert(line.substr(9, line.find('.', 16) - 9));
    if (!line.starts_with("declined attend.")) continue;
    const size_t colon = line.find(": ");
    ASSERT_TRUE(colon != std::string::npos && line.size() > colon + 2) << line;
    declined.insert(line.substr(9, line.find('.', 16) - 9));
  }
  ASSERT_EQ(chosen.size(), 1u);
  EXPECT_EQ(declined.count(*chosen.begin()), 0u);
  declined.insert(chosen.begin(), chosen.end());
  EXPECT_EQ(declined, (std::set<std::string>{"attend.sm90", "attend.sm80", "attend.cpu-avx512", "attend.cpu-avx2", "attend.cpu-portable"}));
}

TEST(Engine, OneCallIsTheSame) {
  Step s = small_step();
  s.make();
  attention(s.spec, s.batch, s.tensors);
  expect_right(s);
}

TEST(Engine, EmptyBatchesAndEmptyRequestsAreValid) {
  for (const std::vector<Request>& requests : {std::vector<Request>{}, {{0, 5}}, {{3, 0}}, {{0, 0}, {2, 1}, {0, 7}}, {{5, 3}}}) {
    Step s;
    s.spec = small_spec();
    s.requests = requests;
    s.make();
    run(s);
    expect_right(s);
    s.poison();
    attention(s.spec, s.batch, s.tensors);
    expect_right(s);
  }
}

}  // namespace
}  // namespace kvloom::test
