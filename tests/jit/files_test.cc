// Files as the cache and the search for libraries find them.
#include "kvloom/support/files.h"

#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

#include <fstream>

namespace kvloom {
namespace {

// A folder that a user names may have characters in its name that patterns give a meaning.
TEST(Files, APlainPatternMatchesItsPathAlone) {
  const test::TemporaryFolder folder;
  for (const char* name : {"cuda[13]", "cuda*", "cuda?", "cu\\da", "cuda1"}) {
    std::filesystem::create_directory(folder / name);
    std::ofstream(folder / name + "/libx.so.1") << "x";
  }
  for (const char* name : {"cuda[13]", "cuda*", "cuda?", "cu\\da", "cuda1"}) {
    const std::string path = folder / name;
    EXPECT_EQ(matching_paths(plain_pattern(path) + "/libx.so*"), std::vector<std::string>{path + "/libx.so.1"}) << name;
  }
}

TEST(Files, NamesOfAFolder) {
  const test::TemporaryFolder folder;
  for (const char* name : {"b", ".a", "c*"}) std::ofstream(folder / name) << "x";
  std::string why = "before";
  EXPECT_EQ(names_in(folder.path(), why), (std::vector<std::string>{".a", "b", "c*"}));
  EXPECT_EQ(why, "");
  EXPECT_TRUE(names_in(folder / "none", why).empty());
  EXPECT_EQ(why, "");
  EXPECT_TRUE(names_in(folder / "b", why).empty());
}

}  // namespace
}  // namespace kvloom
