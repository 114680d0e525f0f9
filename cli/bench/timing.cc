#include "cli/bench/timing.h"

#include <algorithm>
#include <chrono>
#include <random>

namespace kvloom::cli {

double now_us() { return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[size_t(share * double(values.size() - 1) + 0.5)];
}

std::vector<char> normal_block(DType dtype, int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<char> block(size_t(count * size_of(dtype)));
  for (int64_t i = 0; i < count; ++i) store_from_float(block.data(), dtype, i, normal(random));
  return block;
}

}  // namespace kvloom::cli
