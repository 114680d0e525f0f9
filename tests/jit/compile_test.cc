// From a unit to a cubin.
#include "kvloom/jit/compile.h"

#include "kvloom/jit/host_unit.h"
#include "kvloom/support/error.h"
#include "kvloom/support/files.h"
#include "tests/jit/nvrtc_here.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

#include <cstdio>
#include <cstdlib>
#include <set>

namespace kvloom::jit {
namespace {

using test::Environment;
using test::error_of;
using test::has;
using test::TemporaryFolder;

constexpr const char* kArchs[] = {"sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"};

Program small_program(const char* key = "test.small", const char* body = "*out = kvloom::FastDivide(7).divide(50);") {
  return {key, std::string("#include \"kvloom/base/fast_divide.h\"\nextern \"C\" __global__ void f(unsigned* out) { ") + body + " }\n"};
}

/// True if a header is meant for units: those that bring the standard library's headers are the host's.
bool is_for_devices(const SourceText& s) { return std::string(s.text).find("#include <string>") == std::string::npos; }

TEST(Sources, HeadersOfAUnit) {
  const std::vector<SourceText> headers = headers_of("#include \"kvloom/attn/mask.h\"\n// #include \"kvloom/variants/alibi.h\"\n");
  std::set<std::string> names;
  for (const SourceText& h : headers) names.insert(h.name);
  EXPECT_TRUE(names.contains("kvloom/attn/mask.h") && names.contains("kvloom/contract/variant.h") &&
              names.contains("kvloom/base/platform.h"));
  EXPECT_FALSE(names.contains("kvloom/variants/alibi.h"));
  EXPECT_EQ(names.size(), headers.size());
  EXPECT_GT(device_sources().size, 30);
}

// The CPU's unit and the GPU's find the same headers, however the line is spaced.
TEST(Sources, IncludesAreFoundHoweverTheyAreSpaced) {
  for (const char* line :
       {"#include \"kvloom/base/math.h\"", "  #include \"kvloom/base/math.h\"", "#\tinclude\"kvloom/base/math.h\" // why"}) {
    EXPECT_EQ(included(line), "kvloom/base/math.h") << line;
    const std::string text = std::string("int a;\n") + line + "\nint b;\n";
    bool has_math = false;
    for (const SourceText& h : headers_of(text)) has_math = has_math || std::string(h.name) == "kvloom/base/math.h";
    EXPECT_TRUE(has_math) << line;
    EXPECT_TRUE(has(with_headers(text), "#line 1 \"kvloom/base/math.h\"")) << line;
    EXPECT_FALSE(has(with_headers(text), line)) << line;
  }
  for (const char* line : {"// #include \"kvloom/base/math.h\"", "#include <math.h>", "include \"kvloom/base/math.h\"", ""})
    EXPECT_EQ(included(line), "") << line;
}

// Every header that a unit may include compiles alone, and all of them together for every generation of chips.
TEST(Sources, EveryHeaderCompiles) {
  NEED_NVRTC();
  std::string all, log;
  for (const SourceText& s : device_sources()) {
    if (!is_for_devices(s)) continue;
    const std::string line = std::string("#include \"") + s.name + "\"\n";
    EXPECT_NO_THROW(compile_program({s.name, line}, "sm_90a", log)) << s.name;
    all += line;
  }
  for (const char* arch : kArchs) EXPECT_NO_THROW(compile_program({"test.all", all}, arch, log)) << arch;
}

TEST(Compile, GivesACubinAndKeepsIt) {
  NEED_NVRTC();
  const TemporaryFolder folder;
  const Cache cache(folder.path());
  testing::internal::CaptureStderr();
  const std::string first = cubin_of(small_program(), "sm_90a", cache);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(has(said, "test.small: compiled for sm_90a in ")) << said;
  EXPECT_EQ(first.substr(1, 3), "ELF");
  testing::internal::CaptureStderr();
  EXPECT_EQ(cubin_of(small_program(), "sm_90a", cache), first);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_TRUE(is_cached(small_program(), "sm_90a", cache));
  EXPECT_FALSE(is_cached(small_program(), "sm_80", cache));
}

// Two constants are two kernels.
TEST(Compile, B96_EveryPartOfTheInputIsInTheName) {
  const CacheName a = cache_name(small_program(), "sm_90a");
  EXPECT_NE(a.input, cache_name(small_program("test.small", "*out = 8;"), "sm_90a").input);
  EXPECT_NE(a.input, cache_name(small_program(), "sm_80").input);
  Program other = small_program();
  other.text = "#include \"kvloom/base/math.h\"\n" + other.text;
  EXPECT_NE(a.input, cache_name(other, "sm_90a").input);
  EXPECT_EQ(a.input, cache_name(small_program(), "sm_90a").input);
}

// The whole log, and where in the user's text it is.
TEST(Compile, B99_ErrorsCarryTheLog) {
  NEED_NVRTC();
  const Program broken = small_program("test.broken", "\n#line 7 \"mine.h\"\n *out = no_such_thing; also_missing();\n");
  const std::string text = error_of([&] { cubin_of(broken, "sm_90a", Cache("")); }, ErrorCode::invalid_argument);
  EXPECT_TRUE(has(text, "test.broken")) << text;
  EXPECT_TRUE(has(text, "mine.h(7)")) << text;
  EXPECT_TRUE(has(text, "no_such_thing")) << text;
  EXPECT_TRUE(has(text, "also_missing")) << text;
  EXPECT_TRUE(has(text, "--gpu-architecture=sm_90a")) << text;
}

// A compiler that stops early is content with the half that it has read.
TEST(Compile, ACubinWithoutItsKernelIsAnError) {
  NEED_NVRTC();
  const TemporaryFolder folder;
  const Cache cache(folder.path());
  Program cut = small_program("test.cut");
  cut.text = "// caf\xff\n" + cut.text;
  cut.kernels = {"f"};
  std::string text = error_of([&] { cubin_of(cut, "sm_90a", cache); }, ErrorCode::invalid_argument);
  EXPECT_TRUE(has(text, "jit: test.cut: nvrtc ") && has(text, " gives a cubin for sm_90a without kernel f")) << text;
  EXPECT_TRUE(cache.list().empty());
  Program whole = small_program("test.whole");
  whole.kernels = {"f"};
  EXPECT_NO_THROW(cubin_of(whole, "sm_90a", cache));
  whole.variables = {"f_facts"};
  whole.variant_file = "mine.h";
  text = error_of([&] { cubin_of(whole, "sm_90a", Cache("")); }, ErrorCode::invalid_argument);
  EXPECT_TRUE(has(text, "without variable f_facts") && has(text, "look in mine.h for a macro")) << text;
}

TEST(Compile, ProgramsOfTheLibraryHaveTheirKernels) {
  NEED_NVRTC();
  std::string log;
  for (const Program& program : {ops_program(), plan_program()}) {
    EXPECT_FALSE(program.kernels.empty()) << program.key;
    EXPECT_NO_THROW(compile_program(program, "sm_90a", log)) << program.key;
  }
  const Unit unit = attend_unit("attend.sm80.bf16.d128.paged", AttentionSpec(), {}, {{"attend_memory", "KVLOOM_SM80_ATTEND", ""}});
  EXPECT_EQ(unit.programs()[0].kernels, std::vector<std::string>{"attend_memory"});
  EXPECT_EQ(unit.programs()[0].variables, std::vector<std::string>{"attend_memory_facts"});
}

// B99, B21: what is compiled can be read.
TEST(Unit, ReadsAsAPersonWouldWriteIt) {
  AttentionSpec spec;
  spec.variant.alibi = true;
  spec.variant.soft_cap = 30.0f;
  const Unit unit = attend_unit("attend.sm90.bf16.d128.paged.alibi.softcap", spec,
                                {{"sm80", "kMemory", ".tile_rows = 16"}, {"sm90", "kCompute", ".tile_rows = 64"}, {"sm80", "kOther", ".tile_kv = 32"}},
                                {{"attend_memory", "KVLOOM_SM80_ATTEND", "kMemory"},
                                 {"attend_compute", "KVLOOM_SM90_ATTEND", "kCompute"},
                                 {"attend_mixed", "KVLOOM_SM80_ATTEND_MIXED", "kOther, kMemory"}});
  EXPECT_EQ(unit.whole(),
            "// attend.sm90.bf16.d128.paged.alibi.softcap\n"
            "#include \"kvloom/device/sm80/unit.cuh\"\n"
            "#include \"kvloom/device/sm90/unit.cuh\"\n"
            "#include \"kvloom/variants/alibi.h\"\n"
            "#include \"kvloom/variants/soft_cap.h\"\n"
            "#include \"kvloom/variants/compose.h\"\n"
            "\n"
            "namespace {\n"
            "using Variant = kvloom::variants::Compose<kvloom::variants::Alibi, kvloom::variants::SoftCap>;\n"
            "[[maybe_unused]] constexpr kvloom::sm80::AttendConfig kMemory{.tile_rows = 16};\n"
            "[[maybe_unused]] constexpr kvloom::sm90::AttendConfig kCompute{.tile_rows = 64};\n"
            "[[maybe_unused]] constexpr kvloom::sm80::AttendConfig kOther{.tile_kv = 32};\n"
            "}  // namespace\n"
            "\n"
            "KVLOOM_SM80_ATTEND(attend_memory, kMemory, Variant)\n"
            "KVLOOM_SM90_ATTEND(attend_compute, kCompute, Variant)\n"
            "KVLOOM_SM80_ATTEND_MIXED(attend_mixed, kOther, kMemory, Variant)\n");
  ASSERT_EQ(unit.programs().size(), 3u);
  EXPECT_EQ(unit.programs()[2].key, "attend.sm90.bf16.d128.paged.alibi.softcap:attend_mixed");
  EXPECT_EQ(unit.programs()[2].text, unit.text + "KVLOOM_SM80_ATTEND_MIXED(attend_mixed, kOther, kMemory, Variant)\n");
}

TEST(Unit, VariantsAreComposedInOrder) {
  VariantSpec v;
  EXPECT_EQ(variant_type(v), "kvloom::variants::Plain");
  v.sink = true;  // data: the kernel's finish reads it
  v.range.causal = true;
  EXPECT_EQ(variant_type(v), "kvloom::variants::Plain");
  v.custom_mask = true;
  EXPECT_EQ(variant_type(v), "kvloom::variants::CustomMask");
  v.rope.mode = RopeMode::half_split;
  v.reduction = Reduction::sum;
  EXPECT_EQ(variant_type(v),
            "kvloom::variants::Compose<kvloom::variants::Rope<kvloom::RopeMode::half_split>, kvloom::variants::CustomMask, "
            "kvloom::variants::Sigmoid>");
  UserVariant mine;
  mine.reduction = Reduction::sum;  // it makes the weights, so the library's sigmoid does not
  v.user = &mine;
  v.custom_mask = false;
  EXPECT_EQ(
      variant_type(v),
      "kvloom::variants::Compose<kvloom::variants::Rope<kvloom::RopeMode::half_split>, kvloom::variants::User<kvloom::variants::Chosen>>");
}

TEST(Compile, UnknownHeaderIsNamed) {
  NEED_NVRTC();
  const std::string text = error_of(
      [&] {
        cubin_of({"test.header", "#include \"kvloom/device/none.cuh\"\n"}, "sm_90a", Cache(""));
      },
      ErrorCode::invalid_argument);
  EXPECT_TRUE(has(text, "kvloom/device/none.cuh")) << text;
}

TEST(Compile, NoJitNamesTheKeyAndTheRemedy) {
  const TemporaryFolder folder;
  const Cache cache(folder.path());
  const Environment no_jit("KVLOOM_NO_JIT", "1");
  const std::string text = error_of([&] { cubin_of(small_program(), "sm_90a", cache); }, ErrorCode::unsupported);
  EXPECT_TRUE(has(text, "test.small")) << text;
  EXPECT_TRUE(has(text, folder.path())) << text;
  EXPECT_TRUE(has(text, "kvloom cache warm --arch sm_90a --key test.small")) << text;
  // The unit's key, not that of one of its entries; a user's struct may stand in a namespace.
  for (const char* key : {"test.unit", "test.unit.user-own::Twice"}) {
    const Program entry = small_program((std::string(key) + ":attend_mixed").c_str());
    const std::string said = error_of([&] { cubin_of(entry, "sm_90a", cache); }, ErrorCode::unsupported);
    EXPECT_TRUE(has(said, std::string("--key ") + key + "\"")) << said;
  }
  // The name of a variant's file is part of what is compiled.
  Program users = small_program("test.unit.user-Mine:attend_mixed");
  users.variant_file = "my/mine.h";
  const std::string said = error_of([&] { cubin_of(users, "sm_90a", cache); }, ErrorCode::unsupported);
  EXPECT_TRUE(has(said, "run \"kvloom cache warm --arch sm_90a --key test.unit.user-Mine --variant my/mine.h\" (the variant's text, in a file of this name)")) << said;
  // What another machine made serves.
  CacheName name = cache_name(small_program(), "sm_90a");
  name.compiler = "nvrtc 12.9";
  ASSERT_TRUE(cache.store(name, "cubin"));
  EXPECT_EQ(cubin_of(small_program(), "sm_90a", cache), "cubin");
}

TEST(Compile, B97_ArchsAreChecked) {
  EXPECT_EQ(arch_of(8, 0), "sm_80");
  EXPECT_EQ(arch_of(8, 9), "sm_89");
  EXPECT_EQ(arch_of(9, 0), "sm_90a");
  EXPECT_EQ(arch_of(12, 0), "sm_120a");
  for (const char* good : kArchs) EXPECT_NO_THROW(check_arch(good));
  for (const char* bad : {"", "sm_", "90a", "sm_9x0", "sm_90b", "compute_90"}) {
    EXPECT_TRUE(has(error_of([&] { check_arch(bad); }, ErrorCode::invalid_argument), "sm_90a")) << bad;
  }
  error_of([] { check_arch("sm_75"); }, ErrorCode::unsupported);
  NEED_NVRTC();
  const std::string text = error_of([] { cubin_of(small_program(), "sm_99", Cache("")); }, ErrorCode::unsupported);
  EXPECT_TRUE(has(text, "sm_99") && has(text, "sm_90")) << text;
}

// In a process of its own: the search is made once a process.
TEST(CompileDeathTest, MissingNvrtcIsNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a new process, not a fork of one that may have searched
  EXPECT_EXIT(
      {
        ::setenv("KVLOOM_NVRTC", "/nowhere", 1);
        const std::string text = error_of([] { cubin_of(small_program(), "sm_90a", Cache("")); }, ErrorCode::unsupported);
        std::fputs(text.c_str(), stderr);
        std::exit(testing::Test::HasFailure() ? 1 : 0);
      },
      testing::ExitedWithCode(0), "test\\.small.*KVLOOM_NVRTC; tried:.*/nowhere");
}

}  // namespace
}  // namespace kvloom::jit
