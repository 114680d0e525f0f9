// What all bench rows are made with: a clock, ranks of its readings, and values to attend to.
#pragma once

#include "kvloom/base/dtype.h"

#include <vector>

namespace kvloom::cli {

/// Steady, microseconds.
double now_us();
/// The value at rank `share` (0 .. 1) of the sorted values; 0.5 is the median. At least one value.
double percentile(std::vector<double> values, double share);
/// `count` normal values: the bytes of a block that fills a tensor by repetition. With a prime count it never lines up with a row or a
/// page.
std::vector<char> normal_block(DType dtype, int64_t count, uint32_t seed);

}  // namespace kvloom::cli
