// Every GPU kernel that is asked for somewhere compiles, without a GPU, and holds the registers, spills and shared memory that were recorded.
// The list is tests/jit/units.txt: the compiler that it was recorded with, and a line a key: registers, spilled bytes and bytes of shared memory
// of its entries (below) for sm_90a; zeros where there is no such entry or nothing was recorded, and - for shared memory that was not. Another
// compiler has other registers: with it, and for zeros, only that kernels compile is shown (shared memory is the kernels' own: compared whatever
// compiles them). The list has, of each family, each pair of types, dims, store, features and policy (units_pairs_test.cc); a part that has each of them is compiled
// for the other generations. Whatever the compiler: it says of no kernel that it broke up the wgmma of it.
//   KVLOOM_RECORD_UNITS=all or WORD test_jit --gtest_filter=Units.*   writes the list anew, or its lines of keys that contain WORD (and
//                                                                     fails, so that nobody leaves it on)
//   KVLOOM_UNITS=N, all or WORD    so many of them, or the keys that contain WORD; default 4, and one for each other generation. All: 20 to 25 minutes of a core
//   KVLOOM_UNITS_SECONDS=S         instead: as many as are begun in S seconds, and of the other generations' in S / 5 more
//   KVLOOM_UNITS_FROM=N            which is the first, counted from 0 and around the list's end
//   KVLOOM_UNITS_COMPARABLE=1      another compiler than the recorded one is a failure
#include "kvloom/api/kernels.h"
#include "kvloom/contract/kernel_key.h"
#include "kvloom/jit/compile.h"
#include "kvloom/support/error.h"
#include "tests/jit/nvrtc_here.h"
#include "tests/support/errors.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>

namespace kvloom {
namespace {

constexpr int kEntries = 5;
constexpr const char* kEntryNames[kEntries] = {"attend_memory", "attend_compute", "attend_mixed", "attend_small", "attend_memory_32"};

constexpr int32_t kNotRecorded = -1;

struct Recorded {
  std::string key;
  int32_t registers[kEntries] = {}, spills[kEntries] = {}, shared[kEntries] = {};
  std::vector<std::string> losses;  // not in the list: there are to be none. What does not compile has its error here
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
    for (int e = 0; e < kEntries; ++e) {
      std::string shared;
      words >> r.registers[e] >> r.spills[e] >> shared;
      r.shared[e] = shared == "-" ? kNotRecorded : std::atoi(shared.c_str());
    }
    EXPECT_TRUE(words) << list_path() << ": " << line << ": expected three numbers for each entry";
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

std::string variable(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

/// The number that variable `name` has; -1 if it is not set.
long long number(const char* name) {
  const std::string value = variable(name, "");
  if (value.empty()) return -1;
  EXPECT_EQ(value.find_first_not_of("0123456789"), std::string::npos) << name << ": got " << value << ", expected a whole number";
  return std::atoll(value.c_str());
}

/// `list` turned so that it begins where KVLOOM_UNITS_FROM says.
std::vector<Recorded> from_the_first(std::vector<Recorded> list) {
  if (const long long from = number("KVLOOM_UNITS_FROM"); from > 0) std::rotate(list.begin(), list.begin() + from % int64_t(list.size()), list.end());
  return list;
}

/// What KVLOOM_UNITS, KVLOOM_UNITS_FROM and KVLOOM_UNITS_SECONDS ask for, of `list`.
struct Share {
  std::vector<Recorded> units;  // in the order in which they are begun
  double seconds = 1e9;         // after which none is begun
  bool is_timed() const { return seconds < 1e9; }
};
Share share_of(std::vector<Recorded> list) {
  list = from_the_first(list);
  if (const long long seconds = number("KVLOOM_UNITS_SECONDS"); seconds >= 0) return {list, double(seconds)};
  const std::string word = variable("KVLOOM_UNITS", "4");
  if (word.find_first_not_of("0123456789") == std::string::npos) {
    list.resize(std::min(list.size(), size_t(std::atoi(word.c_str()))));
  } else {
    std::erase_if(list, [&](const Recorded& r) { return !contains(r, word); });
  }
  return {list};
}

/// f(i) for i = 0, 1, .. `count` - 1, as many at a time as there are cores, until `seconds` have passed. Returns how many there were.
size_t side_by_side(size_t count, double seconds, const std::function<void(size_t)>& f) {
  const auto start = std::chrono::steady_clock::now();
  std::atomic<size_t> next = 0, done = 0;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < std::max(1u, std::thread::hardware_concurrency()); ++t) {
    threads.emplace_back([&] {
      while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds) {
        const size_t i = next++;
        if (i >= count) return;
        f(i);
        ++done;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  return done;
}

Recorded measure(const std::string& key, const char* arch) {
  Recorded r;
  r.key = key;
  std::vector<KernelResources> list;
  try {
    list = kernel_resources(key, arch);
  } catch (const std::exception& e) {
    r.losses.emplace_back(e.what());
  }
  for (const KernelResources& k : list) {
    for (int e = 0; e < kEntries; ++e) {
      if (k.entry == kEntryNames[e]) r.registers[e] = k.registers, r.spills[e] = k.spill_bytes, r.shared[e] = k.shared_bytes;
    }
    r.losses.insert(r.losses.end(), k.losses.begin(), k.losses.end());
  }
  return r;
}

/// Those that contain `word`.
void record(const std::vector<Recorded>& units, const std::string& word) {
  std::vector<Recorded> now = units;
  side_by_side(units.size(), 1e9, [&](size_t i) {
    if (contains(units[i], word)) now[i] = measure(units[i].key, "sm_90a");
  });
  for (const Recorded& u : now) {
    for (const std::string& loss : u.losses) ADD_FAILURE() << u.key << ": " << loss;
  }
  std::ofstream file(list_path());
  file << "# recorded with " << kernel_compiler().version << "\n# key, then registers, spilled bytes and bytes of shared memory (-: not recorded) of attend_memory, attend_compute, attend_mixed, "
       << "attend_small, attend_memory_32 (0: none) on sm_90a (tests/jit/units_test.cc)\n";
  for (const Recorded& u : now) {
    file << u.key;
    for (int e = 0; e < kEntries; ++e) {
      file << " " << u.registers[e] << " " << u.spills[e] << " " << (u.shared[e] == kNotRecorded ? "-" : std::to_string(u.shared[e]));
    }
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
  const std::string compiler = kernel_compiler().version;
  const bool comparable = recorded_with() == compiler;  // another compiler has other registers
  if (!comparable) {
    std::printf("registers and spills are not compared: recorded with %s, compiled with %s\n", recorded_with().c_str(), compiler.c_str());
    EXPECT_NE(variable("KVLOOM_UNITS_COMPARABLE", ""), "1") << "KVLOOM_UNITS_COMPARABLE=1: got " << compiler << ", expected " << recorded_with()
                                                            << ", which tests/jit/units.txt was recorded with; name its folder in KVLOOM_NVRTC";
  }
  const Share share = share_of(recorded_units());
  std::vector<Recorded> now(share.units.size());
  const size_t compiled = side_by_side(share.units.size(), share.seconds, [&](size_t i) { now[i] = measure(share.units[i].key, "sm_90a"); });
  EXPECT_GT(compiled, 0u);
  int unrecorded = 0;
  for (size_t i = 0; i < compiled; ++i) {  // side_by_side() leaves out the last ones alone
    const Recorded& bound = share.units[i];
    for (const std::string& loss : now[i].losses) ADD_FAILURE() << bound.key << ": " << loss;
    unrecorded += bound.shared[0] == kNotRecorded;
    for (int e = 0; e < kEntries; ++e) {
      const bool may_lack = e >= 3 || (e > 0 && is_for_hopper(bound) && bound.key.ends_with(".fixed-split"));
      EXPECT_TRUE(now[i].registers[e] > 0 || may_lack) << bound.key << ": entry " << e;
      EXPECT_TRUE(now[i].shared[e] > 0 || now[i].registers[e] == 0) << bound.key << ": entry " << e << " says nothing of its shared memory";
      EXPECT_TRUE(bound.shared[e] == kNotRecorded || now[i].shared[e] <= bound.shared[e])
          << bound.key << ": entry " << e << ": got " << now[i].shared[e] << " bytes of shared memory, expected at most " << bound.shared[e];
      if (bound.registers[e] == 0 || !comparable) continue;  // not recorded yet
      EXPECT_LE(now[i].registers[e], bound.registers[e]) << bound.key << ": entry " << e;
      EXPECT_LE(now[i].spills[e], bound.spills[e]) << bound.key << ": entry " << e;
    }
  }
  std::printf("compiled %zu units of %zu for sm_90a, from %s; shared memory of %d of them is not recorded yet\n", compiled, recorded_units().size(),
              share.units[0].key.c_str(), unrecorded);
}

constexpr const char* kOtherArchs[] = {"sm_80", "sm_89", "sm_100a", "sm_120a"};

/// The words of a key behind its family: types, dims, store, features.
std::set<std::string> words_of(const Recorded& r) {
  std::set<std::string> words;
  std::istringstream parts(r.key.substr(r.key.find('.', r.key.find('.') + 1) + 1));
  for (std::string word; std::getline(parts, word, '.');) words.insert(word);
  return words;
}
bool is_dims(const std::string& word) { return word.size() > 1 && word[0] == 'd' && word[1] >= '0' && word[1] <= '9'; }

/// So few of `units` that each word stands in one of them: all types, stores and features for every generation, dims for one of them.
std::vector<std::string> covering_keys(const std::vector<Recorded>& units, size_t generation, size_t generations) {
  std::set<std::string> wanted, dims;
  for (const Recorded& u : units) {
    for (const std::string& word : words_of(u)) (is_dims(word) ? dims : wanted).insert(word);
  }
  size_t number = 0;
  for (const std::string& d : dims) {
    if (number++ % generations == generation) wanted.insert(d);
  }
  std::vector<std::string> keys;
  while (!wanted.empty()) {
    const auto new_words = [&](const Recorded& u) {
      const std::set<std::string> words = words_of(u);
      return std::count_if(words.begin(), words.end(), [&](const std::string& w) { return wanted.count(w) > 0; });
    };
    const Recorded& best = *std::max_element(units.begin(), units.end(), [&](const Recorded& a, const Recorded& b) { return new_words(a) < new_words(b); });
    for (const std::string& word : words_of(best)) wanted.erase(word);
    keys.push_back(best.key);
  }
  return keys;
}

// A part of the list that covers what kernels differ by. Family sm90 is left out: the next test says why.
TEST(Units, OtherGenerationsCompile) {
  NEED_NVRTC();
  std::vector<Recorded> units = recorded_units();
  std::erase_if(units, is_for_hopper);
  units = from_the_first(units);
  const Share share = share_of(recorded_units());
  const bool whole = share.is_timed() || share.units.size() == recorded_units().size();
  std::vector<std::pair<std::string, const char*>> jobs;
  for (size_t a = 0; a < std::size(kOtherArchs); ++a) {
    std::vector<std::string> keys = covering_keys(units, a, std::size(kOtherArchs));
    if (!whole) keys.resize(1);
    for (const std::string& key : keys) jobs.emplace_back(key, kOtherArchs[a]);
  }
  std::mutex mutex;
  const size_t compiled = side_by_side(jobs.size(), share.seconds / 5, [&](size_t i) {
    const auto& [key, arch] = jobs[i];
    std::string fault;
    try {
      if (kernel_resources(key, arch).size() < 3u) fault = "fewer than 3 entries";
    } catch (const Error& e) {  // a chip may be too small for the key's dims: said, not failed
      if (e.code() != ErrorCode::unsupported) fault = e.what();
    } catch (const std::exception& e) {
      fault = e.what();
    }
    const std::lock_guard<std::mutex> guard(mutex);
    EXPECT_EQ(fault, "") << key << " on " << arch;
  });
  EXPECT_GT(compiled, 0u);
  std::printf("compiled %zu units of %zu for other generations\n", compiled, jobs.size());
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
                          "attend.sm80.bf16.d128.paged.paged", "attend.sm80.bf16.d128.paged.softcap.alibi", "attend.sm80.bf16.d-1.paged",
                          "attend.sm80.bf16.d99999999999.paged", "attend.sm80.bf16.d4294967424.paged", "attend.sm80.bf16.d128-.paged", "attend.sm80.bf16.d192-4294967424.paged"}) {
    EXPECT_NE(parse_kernel_key(bad).fault, "") << bad;
  }
}

}  // namespace
}  // namespace kvloom
