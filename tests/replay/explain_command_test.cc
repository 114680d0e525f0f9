// `kvloom explain` as a user runs it.
#include "tests/replay/tool.h"

#include <nlohmann/json.hpp>

#include <gtest/gtest.h>

namespace kvloom::test {
namespace {

TEST(ExplainCommand, ShowsWorkKernelPlanAndPicture) {
  Tool tool({"explain", "--model", "gemma-2-9b", "--layer", "0", "--kv-len", "9000,100,64", "--q-len", "1,1,64", "--no-ceilings", "--svg",
             "@/plan.svg", "--json", "@/plan.json"});
  EXPECT_EQ(tool.wait(), 0) << tool.err();
  EXPECT_TRUE(contains(tool.out(), "a window of 4096 keys, soft cap 50"));
  EXPECT_TRUE(contains(tool.out(), "FLOP/byte"));
  EXPECT_TRUE(contains(read_file(tool.file("plan.svg")), "<svg"));
  const nlohmann::json j = nlohmann::json::parse(read_file(tool.file("plan.json")));
  ASSERT_EQ(j["requests"].size(), 3u);
  EXPECT_EQ(j["requests"][0]["kv_bytes"], 4096 * 8 * 512 * 2);
  EXPECT_EQ(j["requests"][2]["packed_rows"], 128);
  EXPECT_FALSE(j["plan"].is_null());
}

TEST(ExplainCommand, AdvisesRopeAtAppendWhereItIsFused) {
  Tool fused({"explain", "--kv-len", "64", "--q-len", "64", "--rope", "half_split", "--no-ceilings"});
  EXPECT_EQ(fused.wait(), 0) << fused.err();
  EXPECT_TRUE(contains(fused.out(), ".rope-half") && contains(fused.out(), "Prefer RoPE at append")) << fused.out();
  Tool plain({"explain", "--kv-len", "64", "--q-len", "64", "--no-ceilings"});
  EXPECT_EQ(plain.wait(), 0) << plain.err();
  EXPECT_FALSE(contains(plain.out(), "advice")) << plain.out();
}

TEST(ExplainCommand, AnArchitectureWantsTheGpuBackend) {
  Tool tool({"explain", "--arch", "sm_90a", "--kv-len", "9"});
  EXPECT_EQ(tool.wait(), 1);
  EXPECT_EQ(tool.err(), "kvloom: --arch sm_90a: got it with --backend cpu, wanted --backend cuda\n");
}

TEST(ExplainCommand, TheCapacityOfTheEngineIsTheUsersToGive) {
  for (const bool roomy : {false, true}) {
    std::vector<std::string> arguments = {"explain", "--backend", "cuda", "--arch", "sm_90a", "--kernel", "sm80", "--kv-len", "4096", "--json", "@/plan.json"};
    if (roomy) arguments.insert(arguments.end(), {"--max-kv-tokens", "1000000"});
    Tool tool(arguments);
    EXPECT_EQ(tool.wait(), 0) << tool.err();
    EXPECT_TRUE(contains(tool.out(), roomy ? "launch attend_memory" : "launch attend_small")) << tool.out();
    const nlohmann::json j = nlohmann::json::parse(read_file(tool.file("plan.json")));
    EXPECT_TRUE(j["step"]["roof"].is_null() && j["step"]["roof_us"].is_null());
    EXPECT_EQ(j["plan"]["num_ctas"], roomy ? 264 : 132);
  }
}

TEST(ExplainCommand, RefusesLengthsThatDisagree) {
  Tool lengths({"explain", "--kv-len", "100,200,300", "--q-len", "1,1", "--no-ceilings"});
  EXPECT_EQ(lengths.wait(), 1);
  EXPECT_TRUE(contains(lengths.err(), "--q-len: got 2 lengths, wanted 1 or 3")) << lengths.err();
  Tool longer({"explain", "--kv-len", "100", "--q-len", "101", "--no-ceilings"});
  EXPECT_EQ(longer.wait(), 1);
  EXPECT_TRUE(contains(longer.err(), "request 0: got 101 new tokens and a --kv-len of 100")) << longer.err();
}

TEST(ExplainCommand, AWrongArchitectureNamesItsOption) {
  Tool tool({"explain", "--backend", "cuda", "--arch", "sm_9x", "--kv-len", "9"});
  EXPECT_EQ(tool.wait(), 1);
  EXPECT_EQ(tool.err().rfind("kvloom: Engine: options.cuda_arch: got \"sm_9x\", wanted an architecture like sm_80", 0), 0u) << tool.err();
}

}  // namespace
}  // namespace kvloom::test
