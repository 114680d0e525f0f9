// What of a text is code: names and includes in comments and strings are not.
#include "kvloom/jit/code_text.h"

#include "kvloom/jit/host_unit.h"
#include "kvloom/jit/sources.h"
#include "kvloom/jit/text_fault.h"
#include "tests/support/errors.h"

#include <gtest/gtest.h>

namespace kvloom::jit {
namespace {

using test::has;

TEST(CodeText, CommentsAndRawStringsAreBlanked) {
  const std::pair<const char*, const char*> texts[] = {
      {"a; // b\nc", "a;     \nc"},
      {"a; // b \\\nc\nd", "a;       \n \nd"},
      {"a /* b\nc */ d", "a     \n     d"},
      {"/*/ a */ b", "         b"},
      {"a /* b", "a     "},
      {"\"/*\" a /* b */ \"\\\"//\" c", "\"/*\" a         \"\\\"//\" c"},
      {"'\"' a // b", "'\"' a     "},
      {"1'000 /* a */ + u8'/' // b", "1'000         + u8'/'     "},
      {"R\"x(a\n)\" // )x\" b", "R    \n          b"},
      {"\"a\nb // c", "\"a\nb     "},
      {"", ""},
  };
  for (const auto& [text, code] : texts) EXPECT_EQ(code_of(text), code) << text;
}

constexpr const char* kCommented =
    "/*\nKVLOOM_VARIANT(Old)\n#include \"old.h\"\n#include \"kvloom/attn/mask.h\"\n*/\nstruct Mine {};\nKVLOOM_VARIANT(Mine)\n";

TEST(CodeText, WhatIsInAVariantsCommentsIsNotTakenForIt) {
  EXPECT_EQ(name_in(kCommented), "Mine");
  EXPECT_EQ(text_fault(kCommented), "");
  EXPECT_TRUE(has(text_fault("/*\nKVLOOM_VARIANT(Old)\n*/\n"), "got no line KVLOOM_VARIANT(NAME)"));
  EXPECT_EQ(with_headers(kCommented), kCommented);
  EXPECT_TRUE(headers_of(kCommented).empty());
}

// Includes that are not found as a unit's are, wherever they would be read from.
TEST(TextFault, IncludesOfOtherSpellingsAreRefused) {
  const std::pair<const char*, const char*> texts[] = {
      {"\n%:include \"kvloom/attn/exp.h\"\n", "line 2: got %:include \"kvloom/attn/exp.h\", wanted #include"},
      {"#include_next <math.h>\n", "line 1: got #include_next <math.h>, wanted #include"},
      {"#import \"kvloom/attn/exp.h\"\n", "line 1: got #import \"kvloom/attn/exp.h\", wanted #include"},
      {"#define WHAT <vector>\n\n # include WHAT\r\n", "line 3: got #include WHAT, wanted #include"},
      {"#include \\\n  \"/etc/passwd\"\n", "line 1: got #include \"/etc/passwd\", wanted #include"},
      {"#inc\\\nlude \"/etc/passwd\"\n", "line 1: got #include \"/etc/passwd\", wanted #include"},
      {"#\f/* a */include <vector>\n", "line 1: got #include <vector>, wanted #include"},
  };
  for (const auto& [text, fault] : texts)
    EXPECT_TRUE(has(text_fault(std::string(text) + "KVLOOM_VARIANT(Mine)\n"), fault)) << text << text_fault(text);
  EXPECT_EQ(text_fault("#define WIDE \\\n  8\n# include <cmath>\n#pragma once\nKVLOOM_VARIANT(Mine)\n"), "");
}

TEST(TextFault, NamesOfTheLibraryAreRefused) {
  for (const char* line : {"#define KVLOOM_VARIANT(x)", " # undef KVLOOM_VARIANT", "%:define KVLOOM_SM80_ATTEND(...)"}) {
    const std::string fault = text_fault("\n" + std::string(line) + "\nKVLOOM_VARIANT(Mine)\n");
    EXPECT_TRUE(has(fault, "line 2: got ") && has(fault, "those that begin with KVLOOM_ are the library's")) << line << ": " << fault;
  }
  EXPECT_EQ(text_fault("#define MINE KVLOOM_HD\n#undef MINE\nKVLOOM_VARIANT(Mine)\n"), "");
}

TEST(TextFault, AByteThatEndsTheTextIsRefused) {
  EXPECT_EQ(text_fault("\n// caf\xff\nKVLOOM_VARIANT(Mine)\n").rfind("line 2: got a byte of 0xff, wanted C++ in UTF-8", 0), 0u);
  EXPECT_EQ(text_fault("// caf\xe9\nKVLOOM_VARIANT(Mine)\n"), "");
}

TEST(TextFault, TheMarkOfUtf8IsNotOfTheText) {
  EXPECT_EQ(without_mark("\xef\xbb\xbf"
                         "a"),
            "a");
  EXPECT_EQ(without_mark("a\xef\xbb\xbf"), "a\xef\xbb\xbf");
  EXPECT_EQ(without_mark(""), "");
}

}  // namespace
}  // namespace kvloom::jit
