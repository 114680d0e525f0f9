// Every GPU kernel that is asked for somewhere compiles, without a GPU, and holds the registers and spills that were recorded. The list is
// tests/jit/units.txt: the compiler that it was recorded with, and a line a key: registers and spilled bytes of its entries (below) for
// sm_90a; zeros where nothing has been recorded or there is no such entry. Another compiler has other registers: with it, and for zeros, only
// that kernels compile is shown. The list covers each pair of (types, dims, store, feature, policy) that kernels differ by; a smaller part
// is compiled for the other generations. Whatever the compiler: it says of no kernel that it broke up the wgmma of it.
//   KVLOOM_RECORD_UNITS=all or WORD test_jit --gtest_filter=Units.*   writes the list anew, or its lines of keys that contain WORD (and
//                                                                     fails, so that nobody leaves it on)
//   KVLOOM_UNITS=N, all or WORD: so many of them from the first, or the keys that contain WORD; default 4. All take many minutes.
#include "kvloom/api/kernels.h"
#include "kvloom/contract/kernel_key.h"
#include "kvloom/jit/compile.h"
#include "kvloom/support/error.h"
#include "tests/jit/nvrtc_here.h"
#include "tests/support/errors.h"

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
  std::vector<std::string> losses;  // not in the list: there are to be none
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

bool contains(const Recorded& r, const std::string& word) { return word == "all" || r.key.find(word) != std::string::npos; }

bool is_for_hopper(const Recorded& r) { return r.key.rfind("attend.sm90.", 0) == 0; }

/// What KVLOOM_UNITS asks for.
std::vector<Recorded> units_to_compile() {
  std::vector<Recorded> list = recorded_units();
  const char* asked = std::getenv("KVLOOM_UNITS");
  const std::string word = asked == nullptr ? "4" : asked;
  if (word.find_first_not_of("0123456789") == std::string::npos) {
    list.resize(std::min(list.size(), size_t(std::atoi(word.c_str()))));
  } else {
    std::erase_if(list, [&](const Recorded& r) { return !contains(r, word); });
  }
  return list;
}

Recorded measure(const std::string& key, const char* arch) {
  Recorded r;
  r.key = key;
  for (const KernelResources& k : kernel_resources(key, arch)) {
    for (int e = 0; e < kEntries; ++e) {
      if (k.entry == kEntryNames[e]) r.registers[e] = k.registers, r.spills[e] = k.spill_bytes;
    }
    r.losses.insert(r.losses.end(), k.losses.begin(), k.losses.end());
  }
  return r;
}

/// Those that contain `word`, as many at a time as there are cores.
void record(const std::vector<Recorded>& units, const std::string& word) {
  std::vector<Recorded> now = units;
  std::atomic<size_t> next = 0;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < std::max(1u, std::thread::hardware_concurrency()); ++t) {
    threads.emplace_back([&] {
      for (size_t i = next++; i < units.size(); i = next++) {
        if (contains(units[i], word)) now[i] = measure(units[i].key, "sm_90a");
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (const Recorded& u : now) {
    for (const std::string& loss : u.losses) ADD_FAILURE() << u.key << ": " << loss;
  }
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
  if (const char* word = std::getenv("KVLOOM_RECORD_UNITS")) {
    record(recorded_units(), word);
    FAIL() << "recorded; run again without KVLOOM_RECORD_UNITS";
  }
  const bool comparable = recorded_with() == kernel_compiler().version;  // another compiler has other registers
  for (const Recorded& bound : units_to_compile()) {
    const Recorded now = measure(bound.key, "sm_90a");
    for (const std::string& loss : now.losses) ADD_FAILURE() << bound.key << ": " << loss;
    for (int e = 0; e < kEntries; ++e) {
      const bool may_lack = e == 3 || (e > 0 && is_for_hopper(bound) && bound.key.ends_with(".fixed-split"));
      EXPECT_TRUE(now.registers[e] > 0 || may_lack) << bound.key << ": entry " << e;
      if (bound.registers[e] == 0 || !comparable) continue;  // not recorded yet
      EXPECT_LE(now.registers[e], bound.registers[e]) << bound.key << ": entry " << e;
      EXPECT_LE(now.spills[e], bound.spills[e]) << bound.key << ": entry " << e;
    }
  }
}

constexpr const char* kOtherArchs[] = {"sm_80", "sm_89", "sm_100a", "sm_120a"};

// Each generation on its own part of the list, so that together they see more of it. Family sm90 is left out: the next test says why.
TEST(Units, OtherGenerationsCompile) {
  NEED_NVRTC();
  std::vector<Recorded> units = recorded_units();
  std::erase_if(units, is_for_hopper);
  const size_t each = std::max<size_t>(1, units_to_compile().size() / 8);
  for (size_t a = 0; a < 4; ++a) {
    for (size_t i = 0, at = a * 5; i < each; ++i, at += 7) {
      const std::string& key = units[at % units.size()].key;
      try {
        EXPECT_GE(kernel_resources(key, kOtherArchs[a]).size(), 3u) << key << " on " << kOtherArchs[a];
      } catch (const Error& e) {  // a chip may be too small for the key's dims: said, not failed
        EXPECT_EQ(int(e.code()), int(ErrorCode::unsupported)) << key << " on " << kOtherArchs[a] << ": " << e.what();
      }
    }
  }
}

// wgmma is an instruction of sm_90a alone.
TEST(Units, OtherGenerationsRefuseHoppersByName) {
  for (const Recorded& u : recorded_units()) {
    if (!is_for_hopper(u)) continue;
    for (const char* arch : kOtherArchs) {
      const std::string why = test::error_of([&] { kernel_source(u.key, arch); }, ErrorCode::unsupported);
      EXPECT_TRUE(test::has(why, "compute capability") && test::has(why, "wanted 9.0")) << u.key << " on " << arch << ": " << why;
    }
  }
}

// The words that KernelResources::losses are found by (api/kernels.cc) are the compiler's own: accumulators touched between two products
// make it say them.
TEST(Units, BrokenUpWgmmaIsSaid) {
  NEED_NVRTC();
  const jit::Program program = {"test.broken_up", R"(#include "kvloom/device/ptx/wgmma.cuh"
extern "C" __global__ void f(float* out, unsigned long long d) {
  using namespace kvloom;
  using Mma = ptx::WarpgroupMma<DType::bf16, ptx::Major::k, 8>;
  float s[8][4];
  ptx::warpgroup_begin();
  Mma::shared<false>(s, d, d);
  ptx::warpgroup_commit();
  s[0][0] += out[threadIdx.x];
  Mma::shared<true>(s, d, d);
  ptx::warpgroup_commit();
  ptx::warpgroup_wait<0>();
  for (int i = 0; i < 32; ++i) out[i * 128 + threadIdx.x] = s[i / 4][i % 4];
})"};
  std::string log;
  jit::compile_program(program, "sm_90a", log);
  EXPECT_TRUE(test::has(log, "(C75")) << log;
}

TEST(Keys, EverySpellingIsReadBack) {
  for (const char* key : {"attend.sm80.bf16.kv-e4m3.o-f32.d192-128.ragged.causal.window.alibi.softcap.mask.sink.rope-half.fixed-split",
                          "attend.cpu-avx2.f32.d16.paged", "attend.sm80.f16.d64.paged.sigmoid.rope-interleaved", "attend.sm90.bf16.o-f32.d192-128.ragged.alibi.softcap"}) {
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
