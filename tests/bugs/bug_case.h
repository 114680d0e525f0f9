// What the tests of this folder share: the table of their inputs, and a run of the engine as a user would make it.
#pragma once

#include "cli/check/case_json.h"
#include "cli/check/run_case.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include <unistd.h>

namespace kvloom::bugs {

using check::Case;
using check::CaseData;

inline const std::vector<Case>& table() {
  static const std::vector<Case> cases = check::read_cases(std::string(KVLOOM_SOURCE_DIR) + "/tests/cases/bugs.json");
  return cases;
}

/// The case of this name.
inline Case bug_case(const std::string& name) {
  for (const Case& c : table()) {
    if (c.name == name) return c;
  }
  ADD_FAILURE() << "tests/cases/bugs.json has no case " << name;
  return {};
}

/// All cases "ENTRY.*" of the table agree with REF under every schedule (check::run_case says what else is compared).
inline void expect_right(const std::string& entry) {
  int cases = 0;
  for (const Case& c : table()) {
    if (c.name.rfind(entry + ".", 0) != 0) continue;
    ++cases;
    const check::CaseResult r = check::run_case(c);
    EXPECT_EQ(r.errors.fault, "") << c.name << " (" << check::describe(c) << ") policy " << name_of(r.failed.policy) << ", "
                                  << r.failed.ctas << " CTAs";
  }
  EXPECT_GT(cases, 0) << "tests/cases/bugs.json has no case " << entry;
}

/// The same for tensors that the test has changed.
inline void expect_right(CaseData& data, const check::CaseOptions& options = {}) {
  const check::CaseResult r = check::run_data(data, options);
  EXPECT_EQ(r.errors.fault, "") << check::describe(data.what()) << " policy " << name_of(r.failed.policy) << ", " << r.failed.ctas
                                << " CTAs";
}

struct Output {
  std::vector<float> o, lse;
};

inline Output run_plan(Engine& engine, const Plan& plan, CaseData& data) {
  data.poison_outputs();
  engine.run(plan, data.tensors());
  return {data.read_o(), data.read_lse()};
}

/// One engine for one step.
inline Output run_once(CaseData& data, const EngineOptions& options = {}) {
  Engine engine(data.what().spec, data.capacity(), options);
  return run_plan(engine, engine.plan(data.batch()), data);
}

inline EngineOptions with_policy(Policy policy, int32_t ctas = 7) {
  EngineOptions options;
  options.policy = policy;
  options.num_ctas = ctas;
  options.threads = 2;
  return options;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}
inline void expect_same_bits(const Output& a, const Output& b) {
  EXPECT_TRUE(same_bits(a.o, b.o));
  EXPECT_TRUE(same_bits(a.lse, b.lse));
}

/// The message of the Error that `f` throws; "" if it throws none.
template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

/// Ends the process if its scope takes longer: a test of a hang must not be one.
class Watchdog {
 public:
  explicit Watchdog(unsigned seconds) { alarm(seconds); }
  ~Watchdog() { alarm(0); }
};

}  // namespace kvloom::bugs
