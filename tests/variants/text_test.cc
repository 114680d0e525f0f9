// What is said of a text that is no variant: the user's file and line, and one sentence; and where compiled ones are kept.
#include "kvloom/api/kernels.h"
#include "kvloom/jit/compile.h"
#include "kvloom/jit/host_compiler.h"
#include "tests/jit/nvrtc_here.h"
#include "tests/support/temporary_folder.h"
#include "tests/variants/variant_texts.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

namespace kvloom::test {
namespace {

std::string unique_text(const char* name) {
  return std::string("// ") + name + " " + std::to_string(::getpid()) +
         "\nstruct Mine {\n  static bool keep(const kvloom::Coord& c) { return c.kv_pos % 2 == 0; }\n};\nKVLOOM_VARIANT(Mine)\n";
}

/// The error of a struct with this body.
std::string error_of_body(const std::string& body) {
  return error_of([&] { variant_from_text("struct Mine {\n" + body + "\n};\nKVLOOM_VARIANT(Mine)\n", "mine.h"); });
}

TEST(Text, B99_ErrorsNameTheUsersFileAndLine) {
  const std::string text =
      error_of_body("  static float logit(float score, const kvloom::Coord& c) {\n    return scor + float(c.kv_pos);\n  }");
  EXPECT_TRUE(has(text, "variant.Mine")) << text;
  EXPECT_TRUE(has(text, "mine.h:3:")) << text;
  EXPECT_TRUE(has(text, "scor")) << text;
  // An include of the library's own does not move the lines below it.
  const std::string later = error_of([] {
    variant_from_text(
        "#include \"kvloom/variants/rope.h\"\n#include \"kvloom/attn/exp.h\"\nstruct Mine {\n  static bool keep(const kvloom::Coord&) { "
        "return nonsense; }\n};\nKVLOOM_VARIANT(Mine)\n",
        "below.h");
  });
  EXPECT_TRUE(has(later, "below.h:4:")) << later;
}

TEST(Text, EveryFaultIsOneSentence) {
  const std::pair<const char*, const char*> faults[] = {
      {"", "a variant has at least one of logit, keep, weight, finish and range"},
      {"  static float logit(float score) { return score; }", "the logit hook is: static float logit("},
      {"  static double logit(float score, const kvloom::Coord&) { return score; }", "the logit hook is: static float logit("},
      {"  static int keep(const kvloom::Coord&) { return 1; }", "the keep hook is: static bool keep("},
      {"  static bool keep(const kvloom::Coord&) { return true; }\n  static float weight(float x) { return x; }",
       "the weight hook and reduction = kvloom::Reduction::sum go together"},
      {"  static constexpr kvloom::Reduction reduction = kvloom::Reduction::sum;\n  static bool keep(const kvloom::Coord&) { return true; "
       "}",
       "the weight hook and reduction = kvloom::Reduction::sum go together"},
      {"  static bool keep(const kvloom::Coord&) { return true; }\n  static float finish(float lse, int32_t) { return lse; }",
       "the finish hook is: static kvloom::RowFinish finish("},
      {"  static bool keep(const kvloom::Coord&) { return true; }\n  static float slope(const kvloom::Coord&) { return 1.0f; }",
       "the slope hook stands beside a logit hook"},
      {"  static bool keep(const kvloom::Coord&) { return true; }\n  static float score(float s, const kvloom::Coord&) { return s; }",
       "the hooks are called logit, keep, weight, slope and finish"},
      {"  static bool keep(const kvloom::Coord&) { return true; }\n  static float query(float x) { return x; }",
       "fused RoPE is spec.variant.rope"},
      {"  struct Params { float x; };\n  static bool keep(const kvloom::Coord&, const Params&) { return true; }",
       "struct Params ends with KVLOOM_PARAMS("},
      {"  struct Params { float x; float y; KVLOOM_PARAMS(KVLOOM_PARAM(x, 0, 1)) };\n  static bool keep(const kvloom::Coord&, const "
       "Params&) { return true; }",
       "KVLOOM_PARAMS names every member of Params, in their order"},
      {"  struct Params { double x; KVLOOM_PARAMS(KVLOOM_PARAM(x, 0, 1)) };\n  static bool keep(const kvloom::Coord&, const Params&) { "
       "return true; }",
       "a parameter is a float, int32_t or int64_t, or an Array"},
  };
  for (const auto& [body, sentence] : faults) {
    const std::string text = error_of_body(body);
    EXPECT_TRUE(has(text, sentence)) << body << "\n" << text;
    EXPECT_TRUE(has(text, "mine.h:")) << body << "\n" << text;
    EXPECT_EQ(has(text, "a variant has at least one of"), *body == 0) << body << "\n" << text;  // a hook that is wrong is there
  }
}

// Of every type: reversed, no number, no value of the type.
TEST(Text, RangesThatHaveNoValueAreRefused) {
  const std::tuple<const char*, const char*, const char*> faults[] = {
      {"int32_t", "5, 1", "got 5 to 1, wanted low <= high within -2147483648 to 2147483647 (i32), and a whole number between them"},
      {"int32_t", "0, 1e30", "got 0 to 1e+30, wanted low <= high within -2147483648 to 2147483647 (i32)"},
      {"int32_t", "0.2, 0.5", "got 0.2 to 0.5, wanted low <= high within"},
      {"int64_t", "-9.3e18, 9.3e18", "got -9.3e+18 to 9.3e+18, wanted low <= high within -2^53 to 2^53 (i64)"},
      {"float", "0, 1e39", "got 0 to 1e+39, wanted low <= high within -3.40282e+38 to 3.40282e+38 (f32); kvloom check draws"},
      {"float", "__builtin_nan(\"\"), 1", "got nan to 1, wanted low <= high"},
      {"kvloom::Array<uint8_t, kvloom::dim::any>", "-1, 256", "got -1 to 256, wanted low <= high within 0 to 255 (u8)"},
  };
  for (const auto& [type, range, says] : faults) {
    const std::string text = error_of_body(std::string("  struct Params { ") + type + " y; KVLOOM_PARAMS(KVLOOM_PARAM(y, " + range +
                                           ")) };\n  static bool keep(const kvloom::Coord&, const Params&) { return true; }");
    EXPECT_TRUE(has(text, "variant mine.h: KVLOOM_PARAM(y, low, high): ") && has(text, says)) << text;
  }
}

// What the library makes of a wrong text is not said beside the user's own lines.
TEST(Text, FaultsAreSaidWithoutTheLibrarysLines) {
  const std::string misnamed = error_of([] {
    variant_from_text("struct Mine {\n  static bool keep(const kvloom::Coord&) { return true; }\n};\nKVLOOM_VARIANT(Mien)\n", "kvloom/mine.h");
  });
  EXPECT_TRUE(has(misnamed, "\nkvloom/mine.h:4:")) << misnamed;  // the user's, whatever its folder is called
  const std::string hookless = error_of_body("  static float logit(float score) { return scor; }");
  EXPECT_TRUE(has(hookless, "\nmine.h:2:")) << hookless;
  EXPECT_TRUE(has(hookless, "the logit hook is: static float logit(")) << hookless;
  for (const std::string& text : {misnamed, hookless, error_of_body("")}) {
    EXPECT_FALSE(has(text, "\nthe end of variant.")) << text;
    EXPECT_FALSE(has(text, "user_stage.inl")) << text;
    EXPECT_FALSE(has(text, "evaluates to false")) << text;
  }
}

// The host's <cmath>, and on a GPU what stands in for it.
TEST(Text, MathHeadersServeBothCompilers) {
  const std::string text =
      "#include <cmath>\n  #include <math.h>\nstruct Mine {\n  static float logit(float score, const kvloom::Coord& c) {\n"
      "    return c.kv_pos < 0 ? -INFINITY : std::tanh(score) + std::exp(-score * score) + expf(-1.0f) + std::fmax(std::abs(score), "
      "1.0f);\n"
      "  }\n};\nKVLOOM_VARIANT(Mine)\n";
  VariantSpec spec;
  spec.user = variant_from_text(text, "math.h");
  NEED_NVRTC();
  std::string log;
  const jit::Program program{"test.math", jit::variant_headers(spec) + jit::user_text(*spec.user) +
                                              "extern \"C\" __global__ void f(float* x, kvloom::VariantParams p) { *x = " +
                                              jit::variant_type(spec) + "::logit(*x, kvloom::Coord{}, p); }\n"};
  EXPECT_NO_THROW(jit::compile_program(program, "sm_90a", log));
  EXPECT_FALSE(has(log, "warning")) << log;
}

TEST(Text, WhatIsDeclaredAndNowhereDefinedDoesNotCompile) {  // and so is never kept
  const std::string text =
      error_of_body("  static float other(float);\n  static float logit(float s, const kvloom::Coord&) { return other(s); }");
  EXPECT_TRUE(has(text, "does not compile it; its log:\n")) << text;
  EXPECT_TRUE(has(text, "Mine::other(float)")) << text;
}

TEST(Text, WhatNeedsNoCompilerIsSaidWithoutOne) {
  const Environment none("KVLOOM_CXX", "/nowhere/c++");
  EXPECT_EQ(error_of([] { variant_from_text("struct Mine {};"); }).rfind("variant: got no line KVLOOM_VARIANT(NAME)", 0), 0u);
  EXPECT_TRUE(has(error_of([] { variant_from_text("struct Mine {};", "mine.h"); }), "variant mine.h: got no line KVLOOM_VARIANT(NAME)"));
  EXPECT_TRUE(has(error_of([] { variant_from_text("\n#include \"my_own.h\"\nKVLOOM_VARIANT(Mine)\n", "mine.h"); }),
                  "variant mine.h: line 2: got #include \"my_own.h\", wanted none but of the library's own"));
  EXPECT_TRUE(has(error_of([] { variant_from_text("#include <cmath>\n#include <algorithm>\nKVLOOM_VARIANT(Mine)\n", "mine.h"); }),
                  "variant mine.h: line 2: got #include <algorithm>, wanted <cmath>, <math.h> or the library's own"));
  EXPECT_TRUE(has(error_of([] { variant_from_file(""); }), "variant: file: got an empty name"));
  EXPECT_TRUE(has(error_of([] { variant_from_file("/nowhere/mine.h"); }, ErrorCode::io), "/nowhere/mine.h"));
  EXPECT_TRUE(has(error_of([] { variant_from_file("/dev/zero"); }, ErrorCode::io), "read /dev/zero: got a device, wanted a file"));  // has no end
}

TEST(Text, AMissingCompilerIsNamed) {
  const TemporaryFolder folder;
  const Environment cache("KVLOOM_CACHE_DIR", folder.path().c_str()), none("KVLOOM_CXX", "/nowhere/c++");
  const std::string text = error_of([] { variant_from_text(unique_text("missing")); }, ErrorCode::unsupported);
  EXPECT_TRUE(has(text, "KVLOOM_CXX names /nowhere/c++")) << text;
  EXPECT_EQ(variant_compiler().version, "");
}

// The text is not to blame.
TEST(Text, AFolderToWorkInThatIsMissingIsNamed) {
  const TemporaryFolder folder;
  const Environment none("TMPDIR", "/nowhere"), cache("KVLOOM_CACHE_DIR", folder.path().c_str());
  const std::string text = error_of([] { variant_from_text(unique_text("nowhere")); }, ErrorCode::io);
  EXPECT_EQ(text, "jit: variant.Mine: no folder to work in: name one that can be written in TMPDIR (/nowhere: No such file or directory)");
}

/// A program in `folder` that runs this shell text.
std::string script(const TemporaryFolder& folder, const std::string& text) {
  std::ofstream(folder / "c++") << "#!/bin/sh\n" << text << "\n";
  std::filesystem::permissions(folder / "c++", std::filesystem::perms::owner_all);
  return folder / "c++";
}

TEST(Text, AFullFolderToWorkInIsNamed) {
  const TemporaryFolder folder, kept;
  const std::string full = script(folder, "case \" $* \" in *\" -E \"*) exec c++ \"$@\";; esac\necho 'ld: final link failed: No space left on device'; exit 1");
  const Environment compiler("KVLOOM_CXX", full.c_str()), cache("KVLOOM_CACHE_DIR", kept.path().c_str()), room("TMPDIR", folder.path().c_str());
  if (variant_compiler().version.empty()) GTEST_SKIP() << "wants c++ on the PATH";
  const std::string text = error_of([] { variant_from_text(unique_text("full")); }, ErrorCode::io);
  EXPECT_TRUE(has(text, "name one that can be written in TMPDIR (" + folder.path() + ": No space left on device)")) << text;
}

// Its own shared object can't be loaded from there, nor could another.
TEST(Text, AFolderThatNothingIsLoadedFromIsNamed) {
  const TemporaryFolder folder, kept;
  const pid_t child = ::fork();
  if (child == 0) {  // in a mount namespace of its own, as the same user
    const std::string users = std::to_string(::getuid()) + " " + std::to_string(::getuid()) + " 1", groups = std::to_string(::getgid()) + " " + std::to_string(::getgid()) + " 1";
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) ::_exit(77);
    std::ofstream("/proc/self/uid_map") << users;
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/gid_map") << groups;
    if (::mount("none", folder.path().c_str(), "tmpfs", MS_NOEXEC, "") != 0) ::_exit(77);
    const Environment room("TMPDIR", folder.path().c_str()), cache("KVLOOM_CACHE_DIR", kept.path().c_str());
    const std::string text = error_of([] { variant_from_text(unique_text("noexec")); }, ErrorCode::io);
    const bool good = has(text, folder.path() + " is mounted noexec: name a folder that libraries can be loaded from in TMPDIR") && !has(text, "cache clear");
    if (!good) std::fprintf(stderr, "%s\n", text.c_str());
    ::_exit(good ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "wants to mount a file system in a namespace of its own";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// Programs that answer --version with a number are not compilers for that.
TEST(Text, OnlyACompilerIsTakenForOne) {
  for (const char* other : {"/bin/ls", "/bin/cat", "/bin/true", "/bin/echo"}) {
    const Environment compiler("KVLOOM_CXX", other);
    EXPECT_EQ(variant_compiler().version, "") << other;
    EXPECT_TRUE(has(variant_compiler().detail, std::string("KVLOOM_CXX names ") + other + ", which is none")) << variant_compiler().detail;
  }
}

TEST(Text, TheMarkOfUtf8IsSkipped) {
  const std::string text = "KVLOOM_VARIANT(Mine)\n", body = "struct Mine { static bool keep(const kvloom::Coord& c) { return c.kv_pos % 3 != 1; } };\n";
  const UserVariant* const plain = variant_from_text(body + text, "marked.h");
  const UserVariant* const marked = variant_from_text("\xef\xbb\xbf" + body + text, "marked.h");
  EXPECT_EQ(plain, marked);
  EXPECT_EQ(std::string(marked->text), body + text);  // which GPUs get, too
}

TEST(Text, AVariantThatThePreprocessorLeavesOutIsSaidSo) {
  for (const char* condition : {"#if 0", "#ifdef NEVER"}) {
    const std::string text = error_of([&] {
      variant_from_text(std::string("struct Mine { static bool keep(const kvloom::Coord&) { return true; } };\n") + condition + "\nKVLOOM_VARIANT(Mine)\n#endif\n", "mine.h");
    });
    EXPECT_TRUE(has(text, "the line KVLOOM_VARIANT(NAME) does not count: it stands in an #if that is not taken")) << text;
    EXPECT_FALSE(has(text, "user_stage.inl")) << text;
  }
}

// What another process made serves, also where nothing may be compiled.
TEST(Text, B98_CompiledVariantsAreKept) {
  const TemporaryFolder folder;
  const Environment cache("KVLOOM_CACHE_DIR", folder.path().c_str());
  const std::string text = unique_text("kept");
  {
    const Environment no_jit("KVLOOM_NO_JIT", "1");
    const std::string missing = error_of([&] { variant_from_text(text); }, ErrorCode::unsupported);
    EXPECT_TRUE(has(missing, "variant.Mine") && has(missing, folder.path())) << missing;
  }
  const pid_t child = ::fork();
  if (child == 0) {
    bool made = false;
    try {
      made = variant_from_text(text) != nullptr;
    } catch (...) {
    }
    ::_exit(made ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  ASSERT_EQ(cached_kernels().size(), 1u);
  EXPECT_EQ(cached_kernels()[0].key, "variant.Mine");
  const Environment no_jit("KVLOOM_NO_JIT", "1");
  EXPECT_STREQ(variant_from_text(text)->name, "Mine");
}

TEST(Text, EveryCompilerHereServes) {
  int served = 0;
  for (const char* name : {"g++", "clang++"}) {
    const TemporaryFolder folder;
    const Environment cache("KVLOOM_CACHE_DIR", folder.path().c_str()), asked("KVLOOM_CXX", name);
    if (variant_compiler().version.empty()) continue;  // not installed
    Step s = variant_step(variant_from_text(unique_text(name)));
    s.make();
    run_step(s);
    expect_right(s, name);
    ++served;
  }
  if (served == 0) GTEST_SKIP() << "wants g++ or clang++; the other tests of variants use the compiler that is here";
}

}  // namespace
}  // namespace kvloom::test
