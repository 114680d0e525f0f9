// Texts of users' variants, and what they throw.
#pragma once

#include "kvloom/api/user_variant.h"
#include "kvloom/support/error.h"
#include "tests/support/errors.h"
#include "tests/support/source_file.h"
#include "tests/support/step.h"

#include <gtest/gtest.h>

#include <string>

namespace kvloom::test {

inline std::string example(const std::string& name) { return source_file("examples/variants/" + name + ".h"); }

/// A step of the small spec with prefill, decode, more queries than keys, and no keys at all.
inline Step variant_step(const UserVariant* user) {
  Step s;
  s.spec = small_spec();
  s.spec.variant.user = user;
  s.requests = {{1, 300}, {7, 64}, {33, 33}, {5, 3}, {2, 129}, {3, 0}};
  return s;
}

inline void run_step(Step& s, const EngineOptions& options = {}) {
  Engine engine(s.spec, s.capacity(), options);
  const Plan plan = engine.plan(s.batch);
  s.poison();
  engine.run(plan, s.tensors);
}

}  // namespace kvloom::test
