// `kvloom plan` as a user runs it.
#include "tests/replay/tool.h"

#include <gtest/gtest.h>

namespace kvloom::test {
namespace {

// Under causal new tokens are keys, too: as `explain` has it. Without it queries may be of another text than the keys.
TEST(PlanCommand, RefusesMoreNewTokensThanKeysUnderCausal) {
  Tool causal({"plan", "--kv-len", "100,7", "--q-len", "100,8", "--causal"});
  EXPECT_EQ(causal.wait(), 1);
  EXPECT_TRUE(contains(causal.err(), "--q-len: request 1: got 8 new tokens and a --kv-len of 7, which counts them")) << causal.err();
  Tool cross({"plan", "--kv-len", "100,7", "--q-len", "100,8"});
  EXPECT_EQ(cross.wait(), 0) << cross.err();
}

TEST(PlanCommand, SaysWhichRequestsItLeavesOut) {
  for (const auto& [q_len, says] : {std::pair("0", "  2 of 2 requests have no new tokens (--q-len 0)"), {"1,0", "  1 of 2 requests have no new tokens (--q-len 0)"}}) {
    Tool tool({"plan", "--kv-len", "100,100", "--q-len", q_len});
    EXPECT_EQ(tool.wait(), 0) << tool.err();
    EXPECT_TRUE(contains(tool.out(), says)) << tool.out();
  }
  Tool all({"plan", "--kv-len", "100,100"});
  EXPECT_EQ(all.wait(), 0) << all.err();
  EXPECT_FALSE(contains(all.out(), "--q-len")) << all.out();
}

TEST(PlanCommand, APictureOnStdoutIsNothingElse) {
  Tool tool({"plan", "--kv-len", "100", "--svg", "-"});
  EXPECT_EQ(tool.wait(), 0) << tool.err();
  EXPECT_EQ(tool.out().rfind("<svg", 0), 0u) << tool.out();
  EXPECT_FALSE(contains(tool.out(), "  balance ")) << tool.out();
}

}  // namespace
}  // namespace kvloom::test
