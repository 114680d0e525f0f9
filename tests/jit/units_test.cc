// Every GPU kernel that is asked for somewhere compiles, without a GPU, and holds the registers and spills that were recorded. The list is
// tests/jit/units.txt: the compiler that it was recorded with, and a line a key: registers and spilled bytes of its entries (below) for
// sm_90a; zeros where nothing has been recorded or there is no such entry. Another compiler has other registers: with it, and for zeros, only
// that kernels compile is shown. The list covers each pair of (types, dims, store, feature, policy) that kernels differ by; a smaller part
// is compiled for the other generations.
//   KVLOOM_RECORD_UNITS=1 test_jit --gtest_filter=Units.*   writes the list anew (and fails, so that nobody leaves it on)
//   KVLOOM_UNITS=N or all: so many of them, from the first; default 4. All take many minutes.
#include "kvloom/api/kernels.h"
#include "kvloom/contract/kernel_key.h"
#include "kvloom/support/error.h"
#include "tests/jit/nvrtc_here.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

namespace kvloom {
namespace {

constexpr int kEntries = 4;
constexpr const char* kEntryNames[kEntries] = {"attend_memory", "attend_compute", "attend_mixed", "attend_small"};

struct Recorded {
  std::string key;
  int32_t registers[kEntries] = {}, spills[kEntries] = {};
};

std::string list_path() { return KVLOOM_SOURCE_DIR "/tests/jit/units.txt"; }

std::vector<Recorded> recorded_units() {
  std::vector<Recorded> list;
  std::ifstream file(list_path());
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    Recorded r;
    words >> r.key;
    for (int e = 0; e < kEntries; ++e) words >> r.registers[e] >> r.spills[e];
    list.push_back(r);
  }
  return list;
}

/// The compiler that the list was recorded with, as kernel_compiler() says it.
std::string recorded_with() {
  constexpr const char* kWords = "# recorded with ";
  std::ifstream file(list_path());
  std::string line;
  std::getline(file, line);
  return line.rfind(kWords, 0) == 0 ? line.substr(std::string(kWords).size()) : "";
}

size_t number_to_compile(size_t all) {
  const char* asked = std::getenv("KVLOOM_UNITS");
  return asked == nullptr ? std::min<size_t>(all, 4) : std::string(asked) == "all" ? all : std::min<size_t>(all, size_t(std::atoi(asked)));
}

Recorded measure(const std::string& key, const char* arch) {
  Recorded r;
  r.key = key;
  for (const KernelResources& k : kernel_resources(key, arch)) {
    for (int e = 0; e < kEntries; ++e) {
      if (k.entry == kEntryNames[e]) r.registers[e] = k.registers, r.spills[e] = k.spill_bytes;
    }
  }
  return r;
}

/// As many at a time as there are cores.
void record(const std::vector<Recorded>& units) {
  std::vector<Recorded> now(units.size());
  std::atomic<size_t> next = 0;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < std::max(1u, std::thread::hardware_concurrency()); ++t) {
    threads.emplace_back([&] {
      for (size_t i = next++; i < units.size(); i = next++) now[i] = measure(units[i].key, "sm_90a");
    });
  }
  for (std::thread& t : threads) t.join();
  std::ofstream file(list_path());
  file << "# recorded with " << kernel_compiler().version << "\n# key, then registers and spilled bytes of attend_memory, attend_compute, attend_mixed, attend_small (0: none) on sm_90a (tests/jit/units_test.cc)\n";
  for (const Recorded& u : now) {
    file << u.key;
    for (int e = 0; e < kEntries; ++e) file << " " << u.registers[e] << " " << u.spills[e];
    file << "\n";
  }
}

TEST(Units, KeysAreSpelledRightAndHaveAKernel) {
  const std::vector<Recorded> units = recorded_units();
  ASSERT_GT(units.size(), 20u);
  ASSERT_LE(units.size(), 250u);
  for (const Recorded& u : units) {
    EXPECT_EQ(parse_kernel_key(u.key).fault, "") << u.key;
    EXPECT_NO_THROW(kernel_source(u.key, "sm_90a")) << u.key;
  }
}

TEST(Units, CompileWithinRecordedBounds) {
  NEED_NVRTC();
  const std::vector<Recorded> units = recorded_units();
  if (std::getenv("KVLOOM_RECORD_UNITS") != nullptr) {
    record(units);
    FAIL() << "recorded; run again without KVLOOM_RECORD_UNITS";
  }
  const bool comparable = recorded_with() == kernel_compiler().version;  // another compiler has other registers
  for (size_t i = 0; i < number_to_compile(units.size()); ++i) {
    const Recorded& bound = units[i];
    const Recorded now = measure(bound.key, "sm_90a");
    for (int e = 0; e < kEntries; ++e) {
      EXPECT_TRUE(now.registers[e] > 0 || e == 3) << bound.key << ": entry " << e;
      if (bound.registers[e] == 0 || !comparable) continue;  // not recorded yet
      EXPECT_LE(now.registers[e], bound.registers[e]) << bound.key << ": entry " << e;
      EXPECT_LE(now.spills[e], bound.spills[e]) << bound.key << ": entry " << e;
    }
  }
}

// Each generation on its own part of the list, so that together they see more of it.
TEST(Units, OtherGenerationsCompile) {
  NEED_NVRTC();
  const std::vector<Recorded> units = recorded_units();
  const char* const archs[] = {"sm_80", "sm_89", "sm_100a", "sm_120a"};
  const size_t each = std::max<size_t>(1, number_to_compile(units.size()) / 8);
  for (size_t a = 0; a < 4; ++a) {
    for (size_t i = 0, at = a * 5; i < each; ++i, at += 7) {
      const std::string& key = units[at % units.size()].key;
      try {
        EXPECT_GE(kernel_resources(key, archs[a]).size(), 3u) << key << " on " << archs[a];
      } catch (const Error& e) {  // a chip may be too small for the key's dims: said, not failed
        EXPECT_EQ(int(e.code()), int(ErrorCode::unsupported)) << key << " on " << archs[a] << ": " << e.what();
      }
    }
  }
}

TEST(Keys, EverySpellingIsReadBack) {
  for (const char* key : {"attend.sm80.bf16.kv-e4m3.o-f32.d192-128.ragged.causal.window.alibi.softcap.mask.sink.rope-half.fixed-split",
                          "attend.cpu-avx2.f32.d16.paged", "attend.sm80.f16.d64.paged.sigmoid.rope-interleaved"}) {
    const ParsedKey k = parse_kernel_key(key);
    EXPECT_EQ(k.fault, "") << key;
    EXPECT_EQ(kernel_key(k.task.c_str(), k.family.c_str(), k.spec, k.fixed_split), key);
  }
  for (const char* bad : {"", "attend", "attend.sm80", "attend.sm80.bf16.d128", "attend.sm80.bf16.paged.d128", "attend.sm80.b16.d128.paged",
                          "attend.sm80.bf16.d128.paged.paged", "attend.sm80.bf16.d128.paged.softcap.alibi", "attend.sm80.bf16.d-1.paged"}) {
    EXPECT_NE(parse_kernel_key(bad).fault, "") << bad;
  }
}

}  // namespace
}  // namespace kvloom
