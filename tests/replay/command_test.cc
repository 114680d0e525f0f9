// The tool as a user runs it, `kvloom replay` above all: exit codes, Ctrl-C, full disks, messages.
#include "tests/replay/tool.h"

#include <nlohmann/json.hpp>

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <thread>

namespace {

namespace fs = std::filesystem;
using kvloom::test::contains;
using kvloom::test::Environment;
using kvloom::test::read_file;
using kvloom::test::TemporaryFolder;
using kvloom::test::Tool;

std::vector<std::string> replay(std::vector<std::string> more) {
  std::vector<std::string> arguments{"replay", "--model", "smollm2-135m", "--no-ceilings", "--requests", "3"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(ReplayCommand, ReportsToPeopleAndToAFile) {
  Tool tool(replay({"--json", "@/report.json"}));
  EXPECT_EQ(tool.wait(), 0) << tool.err();
  EXPECT_TRUE(contains(tool.out(), "attention only"));
  EXPECT_TRUE(contains(tool.out(), "within tolerance"));
  EXPECT_EQ(tool.err(), "");  // no progress bar where nobody watches
  EXPECT_EQ(nlohmann::json::parse(read_file(tool.file("report.json")))["requests"], 3);
}

TEST(ReplayCommand, JsonOnStdoutIsNothingElse) {
  Tool tool(replay({"--json", "-"}));
  EXPECT_EQ(tool.wait(), 0);
  const nlohmann::json j = nlohmann::json::parse(tool.out());
  EXPECT_EQ(j["scope"], "attention only");
  EXPECT_TRUE(contains(tool.err(), "within tolerance"));
}

TEST(ReplayCommand, CtrlCWritesThePartialReport) {
  for (const int number : {SIGINT, SIGTERM}) {
    // Far more than a minute of work.
    Tool tool({"replay", "--model", "smollm2-135m", "--no-ceilings", "--requests", "100000", "--check-rows", "1", "--json", "@/report.json",
               "--export", "@/steps.jsonl"});
    for (int i = 0; i < 400 && (!fs::exists(tool.file("steps.jsonl")) || fs::file_size(tool.file("steps.jsonl")) == 0); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    tool.signal(number);
    EXPECT_EQ(tool.wait(), 130) << tool.err();
    const nlohmann::json j = nlohmann::json::parse(read_file(tool.file("report.json")));
    EXPECT_EQ(j["stopped"], "interrupted");
    EXPECT_GT(j["steps"], 0);
    EXPECT_GT(j["rows_checked"], 0);
    EXPECT_TRUE(contains(tool.out(), "STOPPED BEFORE THE END (interrupted)"));
  }
}

TEST(ReplayCommand, AFullDiskIsReported) {
  Tool tool(replay({"--json", "/dev/full"}));
  EXPECT_EQ(tool.wait(), 1);
  EXPECT_TRUE(contains(tool.err(), "--json /dev/full: write failed: No space left on device")) << tool.err();
  EXPECT_TRUE(contains(tool.out(), "within tolerance"));  // the work is not lost
}

TEST(ReplayCommand, AReportThatCanNotBeWrittenIsRefusedBeforeTheWork) {
  Tool tool(replay({"--json", "/nonexistent/report.json"}));
  EXPECT_EQ(tool.wait(), 1);
  EXPECT_TRUE(contains(tool.err(), "--json /nonexistent/report.json: ")) << tool.err();
  EXPECT_EQ(tool.out(), "");
}

TEST(ReplayCommand, StopsAtABadRowOrSkipsIt) {
  const fs::path path = fs::path(testing::TempDir()) / "kvloom_bad_trace.csv";
  std::ofstream(path) << "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,37,4\n2023-11-16 18:15:47,none,4\n"
                         "2023-11-16 18:15:50.9951690,39,2\n";
  Tool strict(replay({"--trace", path.string()}));
  EXPECT_EQ(strict.wait(), 1);
  EXPECT_TRUE(contains(strict.err(), "line 3: ContextTokens: got 'none', wanted a whole number")) << strict.err();
  Tool lenient(replay({"--trace", path.string(), "--skip-bad", "--json", "@/report.json"}));
  EXPECT_EQ(lenient.wait(), 0) << lenient.err();
  const nlohmann::json j = nlohmann::json::parse(read_file(lenient.file("report.json")));
  EXPECT_EQ(j["skipped_rows"], 1);
  EXPECT_EQ(j["requests"], 2);
  EXPECT_EQ(j["tokens"], 37 + 3 + 39 + 1);
  fs::remove(path);
}

TEST(ReplayCommand, ATraceOfNoRequestIsRefused) {
  const fs::path path = fs::path(testing::TempDir()) / "kvloom_empty_trace.csv";
  const std::string header = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  for (const std::string& text : {std::string(), std::string("\n\n"), header, header + "2023-11-16 18:15:47,none,4\n"}) {
    std::ofstream(path) << text;
    Tool tool(replay({"--trace", path.string(), "--skip-bad", "--json", "@/report.json"}));
    EXPECT_EQ(tool.wait(), 1);
    EXPECT_TRUE(contains(tool.err(), "trace " + path.string() + ": got no request")) << tool.err();
    EXPECT_EQ(contains(tool.err(), "1 rows left out by --skip-bad; the first: trace "), text.size() > header.size()) << tool.err();
    EXPECT_EQ(tool.out(), "");
    EXPECT_FALSE(fs::exists(tool.file("report.json")));
  }
  fs::remove(path);
}

TEST(ReplayCommand, WhatWasNotComputedIsNotCalledRight) {
  Tool tool(replay({"--kv-pool-tokens", "1"}));
  EXPECT_EQ(tool.wait(), 0) << tool.err();
  EXPECT_TRUE(contains(tool.out(), "the pool has 1; give a larger --kv-pool-tokens")) << tool.out();
  EXPECT_TRUE(contains(tool.out(), "checked      nothing: no row was computed")) << tool.out();
  EXPECT_FALSE(contains(tool.out(), "within tolerance")) << tool.out();
}

// A trace without an end: rows that are good, one row, and nothing at all.
TEST(ReplayCommand, CtrlCEndsATraceThatDoesNotEnd) {
  for (const char* text : {"2023-11-16 18:15:46,1,1\n", "7", ""}) {
    const TemporaryFolder folder;
    const std::string path = folder / "endless";
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    std::vector<std::string> arguments = {"replay", "--model", "smollm2-135m", "--no-ceilings", "--trace", path, "--json", "@/report.json"};
    if (text == std::string("7")) arguments.push_back("--skip-bad");
    Tool tool(arguments);
    std::atomic<bool> done{false};
    signal(SIGPIPE, SIG_IGN);  // the tool is gone before its writer
    std::thread writer([&] {
      const int pipe = open(path.c_str(), O_WRONLY);
      std::string piece = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
      do {
        if (write(pipe, piece.data(), piece.size()) < 0) break;
        piece.clear();
        for (int i = 0; i < 100; ++i) piece += text;
        if (piece.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      } while (!done);
      close(pipe);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    tool.signal(SIGTERM);
    EXPECT_EQ(tool.wait(), 130) << tool.err();
    done = true;
    writer.join();
    signal(SIGPIPE, SIG_DFL);
    EXPECT_EQ(nlohmann::json::parse(read_file(tool.file("report.json")))["stopped"], "interrupted");
  }
}

TEST(ReplayCommand, StopsWhenItsTimeIsUp) {
  Tool tool(
      {"replay", "--model", "smollm2-135m", "--no-ceilings", "--requests", "100000", "--limit-seconds", "0.5", "--json", "@/report.json"});
  EXPECT_EQ(tool.wait(), 0) << tool.err();
  EXPECT_EQ(nlohmann::json::parse(read_file(tool.file("report.json")))["stopped"], "time limit");
}

TEST(ReplayCommand, WhatCanNotBeDoneIsNamed) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--trace", "/nonexistent.csv"}, "trace /nonexistent.csv: cannot open: No such file"},
      {{"--layers", "99"}, "--layers: got 99, wanted 1 to 30"},
      {{"--heads", "8"}, "8 query heads and 3 KV heads"},
      {{"--check-rows", "2147483647"}, "--check-rows: got 2147483647, wanted 1 to 65536; every step is checked"},
      {{"--fixed-step-us", "1e308"}, "--fixed-step-us: got 1e+308, wanted 0 (measured) to 1000000000"},
      {{"--trace", "/dev/zero"}, "trace /dev/zero: got a device, wanted a file or a pipe; - reads stdin"},
  };
  for (const auto& [arguments, says] : cases) {
    std::vector<std::string> all{"replay", "--no-ceilings", "--requests", "1", "--model", "smollm2-135m"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    Tool wrong(all);
    EXPECT_EQ(wrong.wait(), 1);
    EXPECT_TRUE(contains(wrong.err(), says)) << wrong.err();
  }
}

TEST(CommandLine, WhatIsWrongIsRefusedInOneForm) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{}, "kvloom: got no command, wanted one of bench cache check doctor explain plan replay; kvloom --help lists what there is\n"},
      {{"nope"}, "kvloom: got 'nope', wanted one of bench "},
      {{"cache", "nope"}, "kvloom: cache: got 'nope', wanted one of list show "},
      {{"plan"}, "kvloom: plan: --kv-len is required; kvloom plan --help lists what there is\n"},
      {{"plan", "--kv-len", "9", "--bogus"}, "kvloom: plan: The following argument was not expected: --bogus;"},
      {{"replay", "--rate-scale", "0"}, "kvloom: replay: --rate-scale: got 0, wanted a number above 0;"},
      {{"replay", "--requests", "-1"}, "kvloom: replay: --requests: got -1, wanted a number from 0;"},
      {{"check", "--ctas", "0"}, "kvloom: check: --ctas: got 0, wanted a number above 0;"},
      {{"check", "--seed", "-1"}, "kvloom: check: --seed: got -1, wanted a number from 0;"},
      {{"replay", "--seed", "-1"}, "kvloom: replay: --seed: got -1, wanted a number from 0;"},
      {{"plan", "--kv-len", "9", "--json", "-", "--svg", "-"}, "kvloom: plan: --svg: got - with --json -, wanted one of them in a file;"},
      {{"explain", "--kv-len", "9", "--json", "-", "--svg", "-"}, "kvloom: explain: --svg: got - with --json -, wanted one of them in a file;"},
  };
  for (const auto& [arguments, says] : cases) {
    Tool wrong(arguments);
    EXPECT_EQ(wrong.wait(), 2);
    EXPECT_EQ(wrong.err().rfind(says, 0), 0u) << wrong.err();
    EXPECT_EQ(wrong.out(), "");
  }
  Tool help({"plan", "--help"});
  EXPECT_EQ(help.wait(), 0);
  EXPECT_TRUE(contains(help.out(), "--kv-len")) << help.out();
}

TEST(CommandLine, WhatDoesNotFitOnStdoutIsAnError) {
  const std::vector<std::string> commands[] = {{"plan", "--kv-len", "9"}, {"doctor"}, {"cache", "list"}, {"plan", "--help"}, {"--version"}};
  for (const std::vector<std::string>& arguments : commands) {
    Tool full(arguments, "/dev/full");
    EXPECT_EQ(full.wait(), 1) << arguments[0];
    EXPECT_TRUE(contains(full.err(), "kvloom: stdout: write failed: ")) << full.err();
  }
  Tool json({"plan", "--kv-len", "9", "--json", "-"}, "/dev/full");
  EXPECT_EQ(json.wait(), 1);
  EXPECT_EQ(json.err().rfind("kvloom: --json -: write failed: ", 0), 0u) << json.err();
  EXPECT_FALSE(contains(json.err(), "kvloom: stdout")) << json.err();  // said once
}

TEST(CommandLine, AnEmptyValueIsNotTheDefault) {
  for (const auto& arguments :
       std::vector<std::vector<std::string>>{replay({"--trace", ""}), {"plan", "--kv-len", ""}, {"check", "--variant", ""}}) {
    Tool empty(arguments);
    EXPECT_EQ(empty.wait(), 2);
    EXPECT_TRUE(contains(empty.err(), ": got nothing, wanted a value; ")) << empty.err();
    EXPECT_EQ(empty.out(), "");
  }
}

TEST(CommandLine, AWordThatNoMachineKnowsIsAWrongCommandLine) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"replay", "--model", "llama"}, "--model: got 'llama', wanted one of llama-3.1-8b, "},
      {{"replay", "--backend", "tpu"}, "--backend: got 'tpu', wanted one of cpu, cuda"},
      {{"replay", "--q-dtype", "int8"}, "--q-dtype: got 'int8', wanted one of f32, "},
      {{"replay", "--kv-dtype", "int8"}, "--kv-dtype: got 'int8', wanted one of f32, "},
      {{"replay", "--kv-layout", "dhn"}, "--kv-layout: got 'dhn', wanted one of hnd, nhd"},
      {{"replay", "--levels", "on"}, "--levels: got 'on', wanted one of auto, off"},
      {{"replay", "--cpu-target", "avx9"}, "--cpu-target: got 'avx9', wanted one of portable, avx2, avx512"},
      {{"explain", "--kv-len", "9", "--model", "llama"}, "--model: got 'llama', wanted one of llama-3.1-8b, "},
      {{"explain", "--kv-len", "9", "--backend", "metal"}, "--backend: got 'metal', wanted one of cpu, cuda"},
      {{"explain", "--kv-len", "9", "--rope", "neox"}, "--rope: got 'neox', wanted one of none, interleaved, half_split"},
      {{"explain", "--kv-len", "9", "--q-dtype", "int8"}, "--q-dtype: got 'int8', wanted one of f32, "},
      {{"explain", "--kv-len", "9", "--kv-dtype", "int8"}, "--kv-dtype: got 'int8', wanted one of f32, "},
      {{"explain", "--kv-len", "9", "--cpu-target", "avx9"}, "--cpu-target: got 'avx9', wanted one of portable, avx2, avx512"},
      {{"bench", "--backend", "metal"}, "--backend: got 'metal', wanted one of cpu, cuda"},
      {{"bench", "--cpu-target", "avx9"}, "--cpu-target: got 'avx9', wanted one of portable, avx2, avx512"},
      {{"check", "--backend", "metal"}, "--backend: got 'metal', wanted one of cpu, cuda"},
      {{"check", "--levels", "on"}, "--levels: got 'on', wanted one of auto, off"},
      {{"check", "--inject", "flood"}, "--inject: got 'flood', wanted one of none, drop-item, "},
      {{"check", "--target", "avx9"}, "--cpu-target: got 'avx9', wanted one of portable, avx2, avx512"},
      {{"plan", "--kv-len", "9", "--cost", "money"}, "--cost: got 'money', wanted one of kv, paper, model"},
  };
  for (const auto& [arguments, says] : cases) {
    Tool wrong(arguments);
    EXPECT_EQ(wrong.wait(), 2) << says;
    EXPECT_EQ(wrong.err().rfind("kvloom: " + arguments[0] + ": " + says, 0), 0u) << wrong.err();
    EXPECT_TRUE(contains(wrong.err(), "; kvloom " + arguments[0] + " --help lists what there is\n")) << wrong.err();
    EXPECT_EQ(wrong.out(), "");
  }
}

TEST(CommandLine, ListsOfNumbersHaveNoGaps) {
  for (const char* command : {"plan", "explain"}) {
    for (const char* list : {"100,,100", ",100", "100,", ",", "1e3", "100;100", "100, 100", "[100,,100]", "99999999999999999999"}) {
      for (const bool of_keys : {true, false}) {
        Tool wrong({command, "--kv-len", of_keys ? list : "100,100", "--q-len", of_keys ? "1" : list});
        EXPECT_EQ(wrong.wait(), 2) << command << " " << list;
        const std::string says = std::string("kvloom: ") + command + (of_keys ? ": --kv-len: got '" : ": --q-len: got '") + list +
                                 "', wanted whole numbers up to ";
        EXPECT_EQ(wrong.err().rfind(says, 0), 0u) << wrong.err();
        EXPECT_EQ(wrong.out(), "");
      }
    }
  }
  Tool right({"plan", "--kv-len", "100,0,300", "--q-len", "1,0,2", "--json", "@/plan.json"});
  EXPECT_EQ(right.wait(), 0) << right.err();
  Tool few({"plan", "--kv-len", "100,100,300", "--q-len", "1,1"});
  EXPECT_EQ(few.wait(), 1);
  EXPECT_TRUE(contains(few.err(), "--q-len: got 2 numbers, wanted 1 or as many as --kv-len has, 3")) << few.err();
}

TEST(CommandLine, PoliciesHaveOneSpelling) {
  const std::vector<std::string> commands[] = {{"plan", "--kv-len", "9"},
                                               {"explain", "--kv-len", "9", "--no-ceilings"},
                                               {"replay", "--no-ceilings", "--requests", "1"},
                                               {"check", "--cases", "0"}};
  for (std::vector<std::string> arguments : commands) {
    const std::string command = arguments[0];
    arguments.insert(arguments.end(), {"--policy", "best"});
    Tool wrong(arguments);
    EXPECT_EQ(wrong.wait(), 2) << command;
    EXPECT_EQ(wrong.err(), "kvloom: " + command +
                               ": --policy: got 'best', wanted one of none, heap, stream, fill, fixed_split, auto; kvloom " + command +
                               " --help lists what there is\n");
    EXPECT_EQ(wrong.out(), "");
  }
  for (const char* name : {"none", "heap", "stream", "fill", "fixed_split", "auto"}) {
    Tool right({"plan", "--kv-len", "4096", "--tile-kv", "64", "--policy", name});
    EXPECT_EQ(right.wait(), 0) << right.err();
    const std::string chosen = right.out().substr(0, right.out().find(':'));
    EXPECT_TRUE(chosen == name || name == std::string("auto")) << right.out();
  }
}

TEST(CommandLine, ATargetOfTheEnvironmentThatDoesNotRunHereIsAnError) {
  const Environment target("KVLOOM_CPU_TARGET", "avx9");
  const std::string says = "KVLOOM_CPU_TARGET: got \"avx9\", wanted a target that runs here: portable";
  Tool explain({"explain", "--kv-len", "9", "--no-ceilings"});
  EXPECT_EQ(explain.wait(), 1);
  EXPECT_EQ(explain.err().rfind("kvloom: " + says, 0), 0u) << explain.err();
  EXPECT_EQ(explain.out(), "");
  Tool replayed(replay({}));
  EXPECT_EQ(replayed.wait(), 1);
  EXPECT_TRUE(contains(replayed.err(), says)) << replayed.err();
  Tool check({"check", "--cases", "1"});
  EXPECT_EQ(check.wait(), 1);
  EXPECT_EQ(check.err().rfind("kvloom: " + says, 0), 0u) << check.err();
  EXPECT_EQ(check.out(), "");
  Tool doctor({"doctor"});  // says what is wrong, and what there is
  EXPECT_EQ(doctor.wait(), 0) << doctor.err();
  EXPECT_TRUE(contains(doctor.out(), "engines refuse it")) << doctor.out();
}

TEST(CheckCommand, APlaceWhereNoCaseCouldRunIsOneError) {
  Tool device({"check", "--backend", "cuda", "--cases", "100", "--device", "1000"});
  EXPECT_EQ(device.wait(), 1);
  EXPECT_EQ(device.err().rfind("kvloom: check: --", 0), 0u) << device.err();  // --backend without a GPU, --device with some
  EXPECT_EQ(device.out(), "");
}

TEST(CheckCommand, CasesAndCtasOutOfRangeAreOneError) {
  for (const auto& [option, value] : {std::pair("--case", "1:99999999999999999999"), {"--case", "-1:3"}, {"--ctas", "99999"}, {"--cases", "-1"}}) {
    Tool wrong({"check", "--seed", "1", option, value});
    EXPECT_EQ(wrong.wait(), 2);
    EXPECT_EQ(wrong.err().rfind(std::string("kvloom: check: ") + option + ": got " + value + ", wanted ", 0), 0u) << wrong.err();
    EXPECT_EQ(wrong.out(), "");
  }
}

TEST(CheckCommand, CtrlCReportsWhatThereIs) {
  Tool tool({"check", "--cases", "1000000", "--json", "@/report.json"});
  std::this_thread::sleep_for(std::chrono::seconds(1));
  tool.signal(SIGINT);
  EXPECT_EQ(tool.wait(), 130) << tool.err();
  EXPECT_TRUE(contains(tool.out(), "interrupted: the rest was not run")) << tool.out();
  EXPECT_EQ(nlohmann::json::parse(read_file(tool.file("report.json")))["failed"], 0);
}

TEST(DoctorCommand, ACacheThatCanNotBeWrittenIsNotOk) {
  const Environment cache("KVLOOM_CACHE_DIR", "/dev/null/kernels");
  Tool doctor({"doctor"});
  EXPECT_EQ(doctor.wait(), 0) << doctor.err();
  EXPECT_TRUE(contains(doctor.out(), "none  kernel cache")) << doctor.out();
  EXPECT_TRUE(contains(doctor.out(), "/dev/null is not a folder; ")) << doctor.out();
}

// Each is named, with what to do, and what works without it.
TEST(DoctorCommand, DriverAndCompilerThatAreMissing) {
  const Environment driver("KVLOOM_CUDA_DRIVER", "/nowhere/libcuda.so.1"), nvrtc("KVLOOM_NVRTC", "/nowhere"), compiler("KVLOOM_CXX", "/nowhere/g++");
  Tool doctor({"doctor", "--json", "@/findings.json"});
  EXPECT_EQ(doctor.wait(), 0) << doctor.err();
  int missing = 0;
  const nlohmann::json report = nlohmann::json::parse(read_file(doctor.file("findings.json")));
  for (const nlohmann::json& f : report["findings"]) {
    const std::string what = f["what"], remedy = f["remedy"];
    const bool ok = f["ok"];
    const auto says = [&](const char* word) { return contains(remedy, word); };
    if (what == "cuda driver") {
      ++missing;
      EXPECT_TRUE(!ok && says("no NVIDIA driver") && says("/nowhere/libcuda.so.1") && says("the CPU backend carries on")) << remedy;
    }
    if (what == "kernel compiler") {
      ++missing;
      EXPECT_TRUE(!ok && says("no NVRTC") && says("KVLOOM_NVRTC") && says("kernels that are in the cache run without it")) << remedy;
    }
    if (what == "c++ compiler") {
      ++missing;
      EXPECT_TRUE(!ok && says("KVLOOM_CXX names /nowhere/g++") && says("only variants of your own want it")) << remedy;
    }
  }
  EXPECT_EQ(missing, 3);
  Tool runs({"check", "--cases", "2"});
  EXPECT_EQ(runs.wait(), 0) << runs.err();
}

TEST(DoctorCommand, ADriverThatIsTooOld) {
  const Environment driver("KVLOOM_CUDA_DRIVER", KVLOOM_OLD_DRIVER);
  Tool doctor({"doctor"});
  EXPECT_EQ(doctor.wait(), 0) << doctor.err();
  EXPECT_TRUE(contains(doctor.out(), "the NVIDIA driver is too old: got one for CUDA 11.2 ") && contains(doctor.out(), "wanted 11.8 or newer; update the driver")) << doctor.out();
  Tool check({"check", "--backend", "cuda", "--cases", "2"});
  EXPECT_EQ(check.wait(), 1);
  EXPECT_TRUE(contains(check.err(), "too old: got one for CUDA 11.2 ")) << check.err();
  Tool cpu({"check", "--cases", "2"});
  EXPECT_EQ(cpu.wait(), 0) << cpu.err();
}

TEST(ReplayCommand, AGpuThatIsNotThereIsOneError) {
  Tool tool({"replay", "--backend", "cuda", "--device", "1000"});
  EXPECT_EQ(tool.wait(), 1);
  EXPECT_EQ(tool.err().rfind("kvloom: replay: --", 0), 0u) << tool.err();  // --backend without a GPU, --device with some
  EXPECT_EQ(tool.out(), "");
}

}  // namespace
