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

TEST(ExplainCommand, RefusesACapacityBelowTheStep) {
  Tool small({"explain", "--kv-len", "100,200", "--no-ceilings", "--max-kv-tokens", "299"});
  EXPECT_EQ(small.wait(), 1);
  EXPECT_EQ(small.err(), "kvloom: --max-kv-tokens: got 299, wanted at least 300: what the step's requests have\n");
  Tool enough({"explain", "--kv-len", "100,200", "--no-ceilings", "--max-kv-tokens", "300"});
  EXPECT_EQ(enough.wait(), 0) << enough.err();
}

// Page tables of such steps would take all the memory that there is.
TEST(ExplainCommand, RefusesLengthsBeyondEveryEngineBeforeItMakesTables) {
  Tool lengths({"explain", "--kv-len", "100,2000000000", "--page-size", "1", "--no-ceilings"});
  EXPECT_EQ(lengths.wait(), 1);
  EXPECT_EQ(lengths.err(), "kvloom: --kv-len: request 1: got 2000000000, wanted 0 to 536870912\n");
  Tool pages({"explain", "--kv-len", "500000000,500000000", "--page-size", "1", "--no-ceilings"});
  EXPECT_EQ(pages.wait(), 1);
  EXPECT_EQ(pages.err(), "kvloom: --kv-len, --page-size: got 1000000000 pages in all, wanted at most 268435456; give a larger --page-size\n");
}

TEST(ExplainCommand, HeadsAndDimsHaveBounds) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--head-dim", "2147483647"}, "kvloom: --head-dim: got 2147483647, wanted at most 65536\n"},
      {{"--heads", "4096", "--kv-heads", "2147483647"}, "kvloom: --heads, --kv-heads: got 4096 and 2147483647, wanted at most 4096\n"},
  };
  for (const auto& [arguments, says] : cases) {
    std::vector<std::string> all{"explain", "--backend", "cuda", "--arch", "sm_90a", "--kv-len", "9"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    Tool wrong(all);
    EXPECT_EQ(wrong.wait(), 1);
    EXPECT_EQ(wrong.err(), says);
  }
}

TEST(ExplainCommand, AnItemTakesAsManyKvHeadsAsItCanName) {
  Tool tool({"explain", "--kv-len", "100", "--no-ceilings", "--heads", "600", "--kv-heads", "300", "--head-dim", "16"});
  EXPECT_EQ(tool.wait(), 0) << tool.err();
  EXPECT_TRUE(contains(tool.out(), ", 255 KV heads an item, ")) << tool.out();
}

TEST(ExplainCommand, UnderFixedSplitThereIsOneClass) {
  for (const std::vector<std::string>& place : {std::vector<std::string>{"--no-ceilings"}, {"--backend", "cuda", "--arch", "sm_80"}}) {
    for (const char* policy : {"fixed_split", "auto"}) {
      std::vector<std::string> all{"explain", "--kv-len", "100", "--policy", policy};
      all.insert(all.end(), place.begin(), place.end());
      Tool tool(all);
      EXPECT_EQ(tool.wait(), 0) << tool.err();
      const bool one = policy == std::string("fixed_split");
      EXPECT_EQ(contains(tool.out(), "\nclasses  one, memory class, for row groups of any size: "), one) << tool.out();
      EXPECT_EQ(contains(tool.out(), "\n  compute  tile "), !one) << tool.out();
      EXPECT_EQ(contains(tool.out(), "\n  memory tile "), one) << tool.out();  // of the roof
    }
  }
}

TEST(ExplainCommand, APictureOnStdoutIsNothingElse) {
  Tool tool({"explain", "--kv-len", "100", "--no-ceilings", "--svg", "-"});
  EXPECT_EQ(tool.wait(), 0) << tool.err();
  EXPECT_EQ(tool.out().rfind("<svg", 0), 0u) << tool.out();
  EXPECT_TRUE(contains(tool.err(), "\nkernel ")) << tool.err();
}

TEST(ExplainCommand, AWrongArchitectureNamesItsOption) {
  Tool tool({"explain", "--backend", "cuda", "--arch", "sm_9x", "--kv-len", "9"});
  EXPECT_EQ(tool.wait(), 1);
  EXPECT_EQ(tool.err().rfind("kvloom: Engine: options.cuda_arch: got \"sm_9x\", wanted an architecture like sm_80", 0), 0u) << tool.err();
}

}  // namespace
}  // namespace kvloom::test
