#include "cli/replay/synthetic_trace.h"

#include "cli/replay/random.h"
#include "kvloom/base/math.h"

#include <algorithm>

namespace kvloom::replay {
namespace {

constexpr int32_t kOne = 1 << 16;  // 1.0 in the fixed point of this file

/// A roughly normal number in fixed point, mean 0, standard deviation about 1: the sum of twelve uniforms (Irwin-Hall).
int64_t normal(Random& random) {
  int64_t sum = 0;
  for (int i = 0; i < 12; ++i) sum += random.below(kOne);
  return sum - 6 * kOne;
}

/// value * 2^(x), x in fixed point, with 2^fraction taken as 1 + fraction (at most 6 % high).
int64_t times_power_of_two(int64_t value, int64_t x) {
  const int64_t whole = x >> 16;  // floor
  const int64_t mantissa = kOne + (x & (kOne - 1));
  const int64_t scaled = whole >= 0 ? (value << whole) : (value >> -whole);
  return scaled * mantissa / kOne;
}

/// Log-normal-like: the median times 2^(1.25 z).
int64_t length(Random& random, int64_t median) { return std::max<int64_t>(1, times_power_of_two(median, normal(random) * 5 / 4)); }

/// Mostly short gaps and now and then a long one: bursts. The mean is `mean_ns`.
int64_t gap(Random& random, int64_t mean_ns) {
  const bool pause = random.below(8) == 0;
  return pause ? random.below(9 * mean_ns) : random.below(mean_ns);  // 1/8 * 4.5 + 7/8 * 0.5 = 1
}

}  // namespace

std::vector<TraceRequest> synthetic_trace(const SyntheticOptions& options) {
  Random random(options.seed);
  std::vector<TraceRequest> trace(static_cast<size_t>(options.requests));
  const int64_t mean_ns = 1'000'000'000 / std::max<int64_t>(1, options.requests_per_second);
  int64_t now = 0;
  uint64_t next_id = 1'000'000;  // ids of blocks that nobody shares
  for (size_t i = 0; i < trace.size(); ++i) {
    TraceRequest& r = trace[i];
    r.line = int64_t(i) + 1;
    r.arrival_ns = now;
    now += gap(random, mean_ns);
    r.block_tokens = 128;
    const int64_t own = length(random, options.median_prompt);
    r.output_tokens = length(random, options.median_output);
    if (random.below(100) < options.shared_percent) {
      const int64_t family = random.below(options.families);
      const int64_t prefix_blocks = 1 + 2 * family;  // families share prefixes of different depth
      for (int64_t b = 0; b < prefix_blocks; ++b) r.blocks.push_back(uint64_t(family * 1000 + b));
    }
    r.prompt_tokens = int64_t(r.blocks.size()) * r.block_tokens + own;
    const int64_t blocks = ceil_div<int64_t>(r.prompt_tokens, r.block_tokens);
    while (int64_t(r.blocks.size()) < blocks) r.blocks.push_back(next_id++);
  }
  return trace;
}

}  // namespace kvloom::replay
