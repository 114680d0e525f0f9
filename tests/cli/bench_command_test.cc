// `kvloom bench` as a user runs it, on a machine with no GPU: what rows there are, and what is wrong with a command line.
#include "tests/replay/tool.h"

#include <nlohmann/json.hpp>

#include <gtest/gtest.h>

#include <fstream>

namespace {

using kvloom::test::contains;
using kvloom::test::read_file;
using kvloom::test::Tool;

TEST(BenchCommand, ARowThatIsNotThereIsAWrongCommandLineAndNamesThoseThatAre) {
  for (const char* backend : {"cpu", "cuda"}) {
    Tool none({"bench", "--backend", backend, "--filter", "no such shape"});
    EXPECT_EQ(none.wait(), 2);
    EXPECT_TRUE(none.err().starts_with(std::string("kvloom: bench: --filter: got 'no such shape', wanted part of a row's name") + (backend[1] == 'p' ? ": " : " of --preset serving: "))) << none.err();
    EXPECT_TRUE(contains(none.err(), backend[1] == 'p' ? "decode-64x4096-32/8-d128-bf16-page16-hnd" : "decode-128x8192-page16"));
    EXPECT_EQ(none.out(), "");
  }
}

TEST(BenchCommand, APresetThatIsNotThereIsAWrongCommandLine) {
  for (const char* list : {"fastest", "hopper,fastest"}) {
    Tool wrong({"bench", "--backend", "cuda", "--preset", list});
    EXPECT_EQ(wrong.wait(), 2);
    EXPECT_EQ(wrong.err().rfind("kvloom: bench: --preset: got 'fastest', wanted one of serving, paper, hopper, decode, levels, streaming, invariant, plan;", 0), 0u) << wrong.err();
  }
  Tool cpu({"bench", "--preset", "hopper"});
  EXPECT_EQ(cpu.wait(), 2);
  EXPECT_TRUE(contains(cpu.err(), "--preset: got it with --backend cpu, wanted --backend cuda")) << cpu.err();
}

// The same option in every command that takes it.
TEST(KernelOption, AFamilyThatIsNotThereIsAWrongCommandLine) {
  for (const char* command : {"bench", "explain", "replay", "check"}) {
    std::vector<std::string> words = {command, "--backend", "cuda", "--kernel", "sm95"};
    if (std::string(command) == "explain") words.insert(words.end(), {"--kv-len", "100"});
    Tool wrong(words);
    EXPECT_EQ(wrong.wait(), 2) << command;
    EXPECT_TRUE(contains(wrong.err(), "--kernel: got 'sm95', wanted one of sm90, sm80")) << command << ": " << wrong.err();
  }
  for (const char* command : {"bench", "explain", "replay"}) {
    std::vector<std::string> words = {command, "--kernel", "sm80"};
    if (std::string(command) == "explain") words.insert(words.end(), {"--kv-len", "100"});
    Tool cpu(words);
    EXPECT_EQ(cpu.wait(), 2) << command;
    EXPECT_TRUE(contains(cpu.err(), "--kernel: got it with --backend cpu, wanted --backend cuda")) << command << ": " << cpu.err();
  }
}

TEST(KernelOption, ExplainTakesTheFamily) {
  for (const char* family : {"sm80", "sm90"}) {
    Tool explain({"explain", "--backend", "cuda", "--arch", "sm_90a", "--kv-len", "1000", "--q-len", "100", "--kernel", family});
    EXPECT_EQ(explain.wait(), 0) << explain.err();
    EXPECT_TRUE(contains(explain.out(), std::string("kernel attend.") + family + ".bf16.d128.paged.causal")) << explain.out();
  }
}

TEST(BenchCommand, ListsItsRowsWithoutAGpu) {
  Tool list({"bench", "--backend", "cuda", "--list", "--preset", "hopper,paper", "--json", "@/rows.json"});
  EXPECT_EQ(list.wait(), 0) << list.err();
  EXPECT_TRUE(contains(list.out(), "hopper: ") && contains(list.out(), "\n  prefill-causal-1x16421-page8\n")) << list.out();
  EXPECT_FALSE(contains(list.out(), "serving: "));
  const nlohmann::json j = nlohmann::json::parse(read_file(list.file("rows.json")));
  EXPECT_EQ(j["presets"].size(), 2u);
  EXPECT_EQ(j["rows"][0]["key"], "attend.sm90.bf16.d128.ragged.causal");
  EXPECT_EQ(j["rows"].size(), 3u * (15 + 18) - 3);  // one row is in both
  Tool named({"bench", "--backend", "cuda", "--list", "--preset", "hopper", "--even-lengths", "--filter", "page", "--json", "-"});
  EXPECT_EQ(named.wait(), 0) << named.err();
  EXPECT_EQ(nlohmann::json::parse(named.out())["rows"].size(), 5u);
  Tool exactly({"bench", "--backend", "cuda", "--list", "--preset", "hopper", "--filter", "=prefill-causal-1x16384-page1", "--json", "-"});
  EXPECT_EQ(exactly.wait(), 0) << exactly.err();
  EXPECT_EQ(nlohmann::json::parse(exactly.out())["rows"].size(), 1u);  // not page16
  Tool cpu({"bench", "--list"});
  EXPECT_EQ(cpu.wait(), 0);
  EXPECT_TRUE(contains(cpu.out(), "decode-mla-16x4096-16/1-d576-512-bf16-page16-nhd\n")) << cpu.out();
}

TEST(BenchCommand, PlansTheStepsOfATraceWithoutAGpu) {
  const char* const step =
      R"({"step": 5, "page_size": 16, "q_len": [1, 512], "kv_len": [900, 1024], "shared_with": [-1, 0], "shared_tokens": [0, 768], "weight": 2.5})";
  Tool tool({"bench", "--backend", "cuda", "--steps", "-", "--list"});
  EXPECT_EQ(tool.wait(), 1);
  EXPECT_TRUE(contains(tool.err(), "bench: --steps -: ")) << tool.err();
  const std::string path = tool.file("steps.jsonl");
  std::ofstream(path) << step << "\n";
  Tool list({"bench", "--backend", "cuda", "--steps", path, "--list", "--schedules", "auto,none", "--json", "-"});
  EXPECT_EQ(list.wait(), 0) << list.err();
  const nlohmann::json j = nlohmann::json::parse(list.out());
  ASSERT_EQ(j["rows"].size(), 1u);
  EXPECT_EQ(j["rows"][0]["shape"], "step-5-mixed");
  EXPECT_EQ(j["rows"][0]["qo_heads"], 32) << "what another engine needs stands there, too";
  EXPECT_EQ(j["rows"][0]["shared_tokens"], nlohmann::json::array({0, 768}));
  EXPECT_DOUBLE_EQ(j["sums"]["all"]["schedules"]["auto"]["planned_us"].get<double>(), 2.5 * j["rows"][0]["schedules"]["auto"]["planned_us"].get<double>());
  for (const char* other : {"--preset=hopper", "--even-lengths", "--constants"}) {
    Tool both({"bench", "--backend", "cuda", "--steps", path, other});
    EXPECT_EQ(both.wait(), 2) << other;
    EXPECT_TRUE(contains(both.err(), "got it with --steps, wanted one of them")) << both.err();
  }
  Tool unknown({"bench", "--backend", "cuda", "--steps", path, "--schedules", "auto,best"});
  EXPECT_EQ(unknown.wait(), 2);
  EXPECT_TRUE(contains(unknown.err(), "--schedules: got 'best', wanted one of flat, none, none-flat, heap,")) << unknown.err();
}

}  // namespace
