// attend() against REF: lengths around every edge, cuts, threads, targets, dtypes, layouts.
#include "tests/support/attend_case.h"

#include <gtest/gtest.h>

namespace kvloom::cpu::test {
namespace {

AttentionSpec small_spec(int32_t qo_heads = 4, int32_t kv_heads = 2, int32_t dim = 64) {
  AttentionSpec s;
  s.num_qo_heads = qo_heads;
  s.num_kv_heads = kv_heads;
  s.head_dim_qk = s.head_dim_vo = dim;
  s.page_size = 16;
  s.variant.range.causal = true;
  return s;
}

/// Runs `c` on every target and compares with REF; fp32 output unless told otherwise.
void expect_right(const AttendCase& c, const Cut& cut, double whole = 2e-6, double worst_row = 4e-6, double lse = 2e-6) {
  for (const Target target : available_targets()) {
    const Errors e = compare_with_ref(c, run(c, cut, target, 2));
    EXPECT_EQ(e.fault, "") << name_of(target);
    EXPECT_LE(e.whole, whole) << name_of(target);
    EXPECT_LE(e.worst_row, worst_row) << name_of(target);
    EXPECT_LE(e.lse, lse) << name_of(target);
  }
}

TEST(Attend, LengthsAroundEveryEdge) {
  AttendCase c;
  c.spec = small_spec();
  c.requests = {{1, 1}, {1, 0}, {0, 5}, {5, 3}, {7, 64}, {48, 48}, {49, 65}, {2, 257}, {3, 256}, {1, 255}, {30, 300}};
  c.make();
  expect_right(c, Cut{});
  Cut split;
  split.splits = 3;
  expect_right(c, split);
}

}  // namespace
}  // namespace kvloom::cpu::test
