// What is wrong with a row, in words, for both comparisons (compare.h): the first fault is kept.
#pragma once

#include "cli/check/compare.h"

namespace kvloom::check {

class RowFaults {
 public:
  RowFaults(const Case& c, Errors& errors) : case_(c), errors_(errors) {}

  void note(int64_t row, const std::string& what, double got, double wanted);
  /// False, and noted, if an element of the row is NaN or infinite.
  bool finite(int64_t row, const float* o, const double* ref_o);
  /// |got - wanted| <= bound (1 + |wanted|), infinities exactly.
  void lse(int64_t row, float got, double wanted, double bound);

 private:
  const Case& case_;
  Errors& errors_;
};

}  // namespace kvloom::check
