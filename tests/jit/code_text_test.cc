// What of a text is code: names and includes in comments and strings are not.
#include "kvloom/jit/code_text.h"

#include "kvloom/jit/host_unit.h"
#include "kvloom/jit/sources.h"
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

}  // namespace
}  // namespace kvloom::jit
