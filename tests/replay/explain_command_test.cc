// `kvloom explain` as a user runs it.
#include "tests/replay/tool.h"
#include "tests/support/temporary_folder.h"

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

// What the text says of the plan is in the JSON, too: the launch, and why a prefix that was found is not read once.
TEST(ExplainCommand, TheJsonHasLaunchAndNotes) {
  for (const bool shared : {false, true}) {
    Tool tool({"explain", "--backend", "cuda", "--arch", "sm_90a", "--kv-len", "4096,4096", "--shared-prefix", shared ? "160" : "0", "--json", "@/plan.json"});
    EXPECT_EQ(tool.wait(), 0) << tool.err();
    const nlohmann::json plan = nlohmann::json::parse(read_file(tool.file("plan.json")))["plan"];
    EXPECT_EQ(plan["kernel"], "attend.sm90.bf16.d128.paged.causal");
    EXPECT_EQ(plan["launch"], "attend_memory");
    EXPECT_EQ(plan["notes"].is_null(), !shared) << plan["notes"];
    if (!shared) continue;
    const std::string notes = plan["notes"];
    EXPECT_TRUE(contains(notes, "levels: 1 shared prefix found, none taken") && contains(tool.out(), notes)) << notes;
  }
}

TEST(ExplainCommand, SaysWhetherSharedPrefixesAreLookedFor) {
  for (const char* levels : {"auto", "off"}) {
    Tool tool({"explain", "--kv-len", "64", "--no-ceilings", "--levels", levels});
    EXPECT_EQ(tool.wait(), 0) << tool.err();
    const bool off = levels == std::string("off");
    EXPECT_EQ(contains(tool.out(), "\nlevels   shared prefixes are not looked for: options.levels is off\n"), off) << tool.out();
    EXPECT_EQ(contains(tool.out(), "\nlevels   prefixes that page tables share are read once where that saves at least 2000 tokens of reading\n"), !off) << tool.out();
  }
}

TEST(ExplainCommand, AMaskIsPartOfTheKey) {
  Tool tool({"explain", "--backend", "cuda", "--arch", "sm_90a", "--kv-len", "64", "--mask"});
  EXPECT_EQ(tool.wait(), 0) << tool.err();
  EXPECT_TRUE(contains(tool.out(), ", a custom mask, q bf16") && contains(tool.out(), "\nkernel   attend.sm90.bf16.d128.paged.causal.mask\n")) << tool.out();
}

TEST(ExplainCommand, WithoutAGpuItNamesTheOptionThatNeedsNone) {
  const Environment no_driver("KVLOOM_CUDA_DRIVER", "/nowhere/libcuda.so.1");
  Tool tool({"explain", "--backend", "cuda", "--kv-len", "64"});
  EXPECT_EQ(tool.wait(), 1);
  EXPECT_TRUE(contains(tool.err(), "no NVIDIA driver") && contains(tool.err(), "\n--arch sm_90a, or another, explains without a GPU\n")) << tool.err();
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
