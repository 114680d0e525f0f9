// Threads that name variants at the same time: different ones are compiled side by side, the same one once.
#include "tests/support/temporary_folder.h"
#include "tests/variants/variant_texts.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

namespace kvloom::test {
namespace {

namespace fs = std::filesystem;

/// A compiler that leaves a file for every compilation, and goes on only when `wanted` of them have begun, or after half a minute fails.
class CountingCompiler {
 public:
  explicit CountingCompiler(int wanted)
      : path_(folder_ / "c++"), cache_("KVLOOM_CACHE_DIR", (folder_ / "cache").c_str()), asked_("KVLOOM_CXX", path_.c_str()) {
    fs::create_directory(folder_ / "begun");
    std::ofstream(path_) << "#!/bin/sh\ncase \" $* \" in *\" -E \"*) exec c++ \"$@\";; esac\ntouch " << folder_ / "begun"
                         << "/$$\nn=0\n"
                         << "while [ $(ls " << folder_ / "begun"
                         << " | wc -l) -lt " << wanted << " ]; do\n"
                         << "  n=$((n + 1)); [ $n -gt 300 ] && { echo \"nobody else compiles\"; exit 1; }\n  sleep 0.1\ndone\n"
                         << "exec c++ \"$@\"\n";
    fs::permissions(path_, fs::perms::owner_all);
  }
  int begun() const { return int(std::distance(fs::directory_iterator(folder_ / "begun"), fs::directory_iterator())); }

 private:
  TemporaryFolder folder_;
  std::string path_;
  Environment cache_, asked_;
};

/// Compiled by nobody yet: the process's number is in it.
std::string fresh_text(int number) {
  return "// " + std::to_string(::getpid()) + "\nstruct Mine {\n  static bool keep(const kvloom::Coord& c) { return c.kv_pos % " +
         std::to_string(number) + " == 0; }\n};\nKVLOOM_VARIANT(Mine)\n";
}

TEST(Threads, TwoVariantsAreCompiledSideBySide) {
  const CountingCompiler compiler(2);
  std::string errors[2];
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&errors, i] {
      try {
        variant_from_text(fresh_text(11 + i));
      } catch (const std::exception& e) {
        errors[i] = e.what();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(errors[0], "");
  EXPECT_EQ(errors[1], "");
  EXPECT_EQ(compiler.begun(), 2);
}

TEST(Threads, OneVariantIsCompiledOnce) {
  const CountingCompiler compiler(1);
  const UserVariant* found[4] = {};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&found, i] { found[i] = variant_from_text(fresh_text(13)); });
  for (std::thread& t : threads) t.join();
  ASSERT_NE(found[0], nullptr);
  for (const UserVariant* v : found) EXPECT_EQ(v, found[0]);
  EXPECT_EQ(compiler.begun(), 1);
}

}  // namespace
}  // namespace kvloom::test
