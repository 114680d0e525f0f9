// Random cases over the whole input space. Case (seed, index) is the same case on every machine, for ever: a failure is reported by its
// two numbers.
#pragma once

#include "cli/check/case.h"

namespace kvloom::check {

Case random_case(uint64_t seed, int64_t index);

/// Multiply-adds of a case: how long it takes.
int64_t work_of(const Case& c);

}  // namespace kvloom::check
