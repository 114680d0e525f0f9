// `kvloom cache` as a user runs it: what is wrong with a command line or with the cache's folder is said, and is not a success.
#include "tests/replay/tool.h"

#include <gtest/gtest.h>

namespace {

using kvloom::test::contains;
using kvloom::test::Environment;
using kvloom::test::TemporaryFolder;
using kvloom::test::Tool;

TEST(CacheCommand, NoFolderIsSaid) {
  const Environment home("HOME", nullptr), xdg("XDG_CACHE_HOME", nullptr), own("KVLOOM_CACHE_DIR", nullptr);
  Tool list({"cache", "list"});
  EXPECT_EQ(list.wait(), 0);
  EXPECT_EQ(list.out(), "0 kernels, 0.0 MB in no folder: HOME is not set; name one in KVLOOM_CACHE_DIR\n");
}

TEST(CacheCommand, WhatIsNoArchitectureIsRefused) {
  const TemporaryFolder folder;
  const Environment cache("KVLOOM_CACHE_DIR", folder.path().c_str());
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"cache", "list", "--arch", "foo"}, {"cache", "export", "@/out", "--arch", "foo"}}) {
    Tool wrong(words);
    EXPECT_EQ(wrong.wait(), 1) << words[1];
    EXPECT_TRUE(contains(wrong.err(), "kvloom: cache: --arch: got \"foo\", wanted an architecture like sm_80")) << wrong.err();
    EXPECT_EQ(wrong.out(), "");
  }
  for (const char* good : {"sm_90a", "avx2"}) {  // variants of users are for a CPU target
    Tool list({"cache", "list", "--arch", good});
    EXPECT_EQ(list.wait(), 0) << list.err();
  }
}

TEST(CacheCommand, AFolderIsNoFileOfKeys) {
  Tool warm({"cache", "warm", "--arch", "sm_90a", "--file", "/tmp"});
  EXPECT_NE(warm.wait(), 0);
  EXPECT_TRUE(contains(warm.err(), "cache: --file: /tmp: got a folder, wanted a file of kernel keys")) << warm.err();
}

TEST(CacheCommand, ClearFailsWhereSomethingIsLeft) {
  const TemporaryFolder folder;
  const Environment cache("KVLOOM_CACHE_DIR", folder.path().c_str());
  std::filesystem::create_directories(folder / "left.kvloom/within");
  Tool clear({"cache", "clear"});
  EXPECT_NE(clear.wait(), 0);
  EXPECT_TRUE(contains(clear.err(), folder.path()) && contains(clear.err(), "left.kvloom")) << clear.err();
  EXPECT_EQ(clear.out(), "");
}

// The order of the words, not where it is written down.
TEST(CacheCommand, AWrongKeyIsToldHowKeysAreSpelt) {
  Tool show({"cache", "show", "attend.sm80.bf16.paged.d128", "--arch", "sm_90a"});
  EXPECT_EQ(show.wait(), 1);
  EXPECT_TRUE(contains(show.err(), "wanted words in this order: TASK.FAMILY.TYPE[.kv-TYPE][.o-TYPE].dDIM[-DIM].paged|ragged[.causal]"))
      << show.err();
}

}  // namespace
