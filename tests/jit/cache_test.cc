// The cache between processes: one makes an entry, all get it whole, and what is not whole or not ours is not there.
#include "kvloom/jit/cache.h"

#include "kvloom/support/error.h"
#include "kvloom/support/files.h"
#include "kvloom/support/hash.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <thread>

namespace kvloom::jit {
namespace {

using test::TemporaryFolder;

CacheName name_of(const std::string& key) { return {key, "sm_90a", sha256_hex(key), "nvrtc 13.0"}; }

std::string payload_of(const std::string& key) {
  std::string bytes;
  for (int i = 0; i < 200000; ++i) bytes += char((i * 7 + int(key.size())) & 255);
  return bytes;
}

/// Leaves one byte in `path` each time it is called, then takes its time.
std::string make_counted(const std::string& path, const std::string& key) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  EXPECT_EQ(::write(file, "x", 1), 1);
  ::close(file);
  ::usleep(100000);
  return payload_of(key);
}

int64_t size_of(const std::string& path) {
  std::string bytes, why;
  return read_file(path, bytes, why) ? int64_t(bytes.size()) : 0;
}

std::string entry_path(const std::string& folder) {
  const std::vector<CacheEntry> list = Cache(folder).list();
  return list.size() == 1 ? list[0].path : "";
}

void spoil(const std::string& path, const std::function<void(std::string&)>& change) {
  std::string bytes, why;
  ASSERT_TRUE(read_file(path, bytes, why)) << why;
  change(bytes);
  ASSERT_TRUE(publish_file(path, bytes, why)) << why;
}

// Processes that start at once.
TEST(Cache, B93_SixtyFourProcessesMakeAnEntryOnce) {
  const TemporaryFolder folder;
  const std::string cache_folder = folder / "cache", counter = folder / "made";
  std::vector<pid_t> children;
  for (int i = 0; i < 64; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      const std::string got = Cache(cache_folder)
                                  .find_or_make(
                                      name_of("k"), [&] { return make_counted(counter, "k"); }, nullptr);
      ::_exit(got == payload_of("k") ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  EXPECT_EQ(size_of(counter), 1);
  EXPECT_EQ(Cache(cache_folder).list().size(), 1u);
}

TEST(Cache, ThreadsMakeAnEntryOnce) {
  const TemporaryFolder folder;
  const Cache cache(folder / "cache");
  const std::string counter = folder / "made";
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      good += cache.find_or_make(
                  name_of("k"), [&] { return make_counted(counter, "k"); }, nullptr) == payload_of("k");
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(good, 8);
  EXPECT_EQ(size_of(counter), 1);
}

// The holder of the lock is killed.
TEST(Cache, B94_LockOfAKilledProcessIsFree) {
  const TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    Cache(folder.path())
        .find_or_make(
            name_of("k"),
            [&] {
              std::ofstream(folder / "started") << "x";
              ::sleep(60);
              return std::string();
            },
            nullptr);
    ::_exit(0);
  }
  while (size_of(folder / "started") == 0) ::usleep(2000);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(Cache(folder.path())
                .find_or_make(
                    name_of("k"), [] { return payload_of("k"); }, nullptr),
            payload_of("k"));
}

TEST(Cache, ErrorOfTheMakerIsNotKept) {
  const TemporaryFolder folder;
  const Cache cache(folder / "cache");
  const auto broken = [&] {
    return cache.find_or_make(
        name_of("k"), []() -> std::string { throw Error(ErrorCode::io, "broken"); }, nullptr);
  };
  EXPECT_THROW(broken(), Error);
  EXPECT_EQ(cache.find_or_make(
                name_of("k"), [] { return payload_of("k"); }, nullptr),
            payload_of("k"));
}

TEST(Cache, SpoiledEntriesAreMadeAgain) {
  const std::function<void(std::string&)> faults[] = {
      [](std::string& b) { b[b.size() / 2] = char(b[b.size() / 2] + 1); },  // a flipped byte
      [](std::string& b) { b.resize(b.size() - 5); },                       // torn
      [](std::string& b) { b.resize(40); },
      [](std::string& b) { b.clear(); },
      [](std::string& b) { b += "more"; },
      [](std::string& b) { b = std::string(1000, '\xff'); },             // not an entry at all
      [](std::string& b) { b.replace(b.find("sm_90a"), 6, "sm_80a"); },  // of another chip
  };
  for (const auto& fault : faults) {
    const TemporaryFolder folder;
    const Cache cache(folder.path());
    ASSERT_TRUE(cache.store(name_of("k"), payload_of("k")));
    const std::string path = entry_path(folder.path());
    spoil(path, fault);
    std::string payload;
    EXPECT_FALSE(cache.find(name_of("k"), payload));
    int made = 0;
    EXPECT_EQ(cache.find_or_make(
                  name_of("k"), [&] { return ++made, payload_of("k"); }, nullptr),
              payload_of("k"));
    EXPECT_EQ(made, 1);
    EXPECT_TRUE(cache.find(name_of("k"), payload));
  }
}

// A sound entry under another one's name.
TEST(Cache, ForeignEntryIsMadeAgain) {
  const TemporaryFolder folder;
  const Cache cache(folder.path());
  ASSERT_TRUE(cache.store(name_of("a"), payload_of("a")));
  const std::string a = entry_path(folder.path());
  ASSERT_TRUE(cache.store(name_of("b"), "other"));
  for (const CacheEntry& e : cache.list()) {
    if (e.path != a) std::filesystem::copy_file(e.path, a, std::filesystem::copy_options::overwrite_existing);
  }
  std::string payload;
  EXPECT_FALSE(cache.find(name_of("a"), payload));
  EXPECT_EQ(cache.find_or_make(
                name_of("a"), [] { return payload_of("a"); }, nullptr),
            payload_of("a"));
}

TEST(Cache, AnyCompilerServesWhereNoneIsNamed) {
  const TemporaryFolder folder;
  const Cache cache(folder.path());
  ASSERT_TRUE(cache.store(name_of("k"), payload_of("k")));
  CacheName other = name_of("k");
  std::string payload;
  other.compiler = "nvrtc 12.4";
  EXPECT_FALSE(cache.find(other, payload));
  other.compiler = "";
  EXPECT_TRUE(cache.find(other, payload));
  other.target = "sm_80";
  EXPECT_FALSE(cache.find(other, payload));
}

// Folders that can't be written. (Permissions do not bind root: a folder below a file does everybody.)
TEST(Cache, B98_WorksWithoutAFolder) {
  const TemporaryFolder folder;
  std::ofstream(folder / "file") << "x";
  const Cache cache(folder / "file/cache");
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(cache.find_or_make(
                  name_of("k"), [] { return payload_of("k"); }, nullptr),
              payload_of("k"));
  EXPECT_TRUE(cache.list().empty());
  EXPECT_EQ(cache.clear(), 0);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("is not a folder"), std::string::npos) << said;
  EXPECT_NE(said.find("KVLOOM_CACHE_DIR"), std::string::npos) << said;
  EXPECT_EQ(said.find("kvloom:"), said.rfind("kvloom:")) << "said more than once: " << said;
}

TEST(Cache, ListExportAndClear) {
  const TemporaryFolder folder;
  const Cache cache(folder / "cache");
  ASSERT_TRUE(cache.store(name_of("b"), payload_of("b")));
  ASSERT_TRUE(cache.store(name_of("a"), payload_of("a")));
  std::ofstream(folder / "cache/foreign.kvloom") << "not an entry";
  const std::vector<CacheEntry> list = cache.list();
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0].name.key, "a");
  EXPECT_EQ(list[1].bytes, int64_t(payload_of("b").size()));
  EXPECT_EQ(cache.export_to(folder / "out", [](const CacheEntry& e) { return e.name.key == "b"; }), 1);
  std::string payload;
  EXPECT_TRUE(Cache(folder / "out").find(name_of("b"), payload));
  EXPECT_EQ(payload, payload_of("b"));
  EXPECT_EQ(cache.clear(), 3);
  EXPECT_TRUE(cache.list().empty());
}

// A folder's name is a name, not a pattern that others match.
TEST(Cache, FoldersAreNamedNotMatched) {
  const TemporaryFolder folder;
  const Cache neighbour(folder / "star1");
  ASSERT_TRUE(neighbour.store(name_of("n"), payload_of("n")));
  CacheName any = name_of("k");
  any.compiler = "";
  for (const char* name : {"star*", "star?", "star[1]", "a\\b"}) {
    const Cache cache(folder / name);
    std::string payload;
    EXPECT_TRUE(cache.list().empty()) << name;
    EXPECT_EQ(cache.clear(), 0) << name;
    ASSERT_TRUE(cache.store(name_of("k"), payload_of("k"))) << name;
    ASSERT_EQ(cache.list().size(), 1u) << name;
    EXPECT_EQ(cache.list()[0].name.key, "k") << name;
    EXPECT_TRUE(cache.find(any, payload)) << name;
    EXPECT_EQ(cache.clear(), 1) << name;
    EXPECT_TRUE(cache.list().empty()) << name;
  }
  EXPECT_EQ(neighbour.list().size(), 1u);
}

// A pipe without a writer would be waited for.
TEST(Cache, WhatIsNoPlainFileIsNoEntry) {
  const TemporaryFolder folder;
  const Cache cache(folder.path());
  ASSERT_TRUE(cache.store(name_of("k"), payload_of("k")));
  const std::string path = entry_path(folder.path());
  ASSERT_EQ(::unlink(path.c_str()), 0);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  ::alarm(30);  // ends the test where it hangs
  CacheName any = name_of("k");
  any.compiler = "";
  std::string payload;
  EXPECT_TRUE(cache.list().empty());
  EXPECT_FALSE(cache.find(name_of("k"), payload));
  EXPECT_FALSE(cache.find(any, payload));
  EXPECT_EQ(cache.find_or_make(
                name_of("k"), [] { return payload_of("k"); }, nullptr),
            payload_of("k"));
  ::alarm(0);
  EXPECT_EQ(cache.list().size(), 1u);  // the entry is in the pipe's place
}

// What can't be removed is not said to be: here a folder of an entry's name, for root is bound by no permissions.
TEST(Cache, ClearSaysWhatIsLeft) {
  const TemporaryFolder folder;
  const Cache cache(folder.path());
  ASSERT_TRUE(cache.store(name_of("k"), payload_of("k")));
  std::filesystem::create_directories(folder / "left.kvloom/within");
  const std::string text = test::error_of([&] { cache.clear(); }, ErrorCode::io);
  EXPECT_TRUE(test::has(text, "cache clear: " + folder.path() + ": got 1 files removed and 1 left (remove left.kvloom: ")) << text;
  EXPECT_TRUE(cache.list().empty());
}

TEST(Cache, FolderOfTheEnvironment) {
  const test::Environment home("HOME", "/h"), xdg("XDG_CACHE_HOME", nullptr), own("KVLOOM_CACHE_DIR", nullptr);
  EXPECT_EQ(Cache::of_environment().folder(), "/h/.cache/kvloom");
  const test::Environment xdg_set("XDG_CACHE_HOME", "/x");
  EXPECT_EQ(Cache::of_environment().folder(), "/x/kvloom");
  const test::Environment own_set("KVLOOM_CACHE_DIR", "/own");
  EXPECT_EQ(Cache::of_environment().folder(), "/own");
}

}  // namespace
}  // namespace kvloom::jit
