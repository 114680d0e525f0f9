#include "kvloom/jit/compile.h"

#include "kvloom/jit/cubin.h"
#include "kvloom/jit/nvrtc.h"
#include "kvloom/jit/progress.h"
#include "kvloom/support/check.h"
#include "kvloom/support/files.h"
#include "kvloom/support/hash.h"

#include <algorithm>
#include <cstdlib>
#include <future>
#include <mutex>

namespace kvloom::jit {
namespace {

std::vector<std::string> options_of(const std::string& arch) {
  std::vector<std::string> options{"--gpu-architecture=" + arch, "-std=c++20", "-default-device", "-ftz=true", "--ptxas-options=-v"};
  if (environment("KVLOOM_RACECHECK") == "1") options.push_back("-DKVLOOM_RACECHECK");  // device/sm80/ring.cuh
  return options;
}

const Nvrtc& nvrtc_for(const std::string& key, const std::string& arch) {
  std::string why;
  const Nvrtc* nvrtc = Nvrtc::find(why);
  if (nvrtc == nullptr) fail(ErrorCode::unsupported, "jit: {}: {}", key, why);
  const int number = std::atoi(arch.c_str() + 3);
  const std::vector<int>& archs = nvrtc->archs();
  if (!archs.empty() && std::find(archs.begin(), archs.end(), number) == archs.end()) {
    std::string known;
    for (const int a : archs) known += kvloom::format("{}sm_{}", known.empty() ? "" : ", ", a);
    fail(ErrorCode::unsupported, "jit: {}: arch: got {}, wanted one that {} compiles for ({}); use another NVRTC (KVLOOM_NVRTC)", key, arch,
         nvrtc->version(), known);
  }
  return *nvrtc;
}

/// Most of what a name is made of, and the same for all entries of a key: kept for the next one.
Sha256 hash_of_headers(const std::vector<SourceText>& headers) {
  static std::mutex mutex;
  static std::vector<const char*> last;  // device and standard sources last as long as the library
  static Sha256 kept;
  std::vector<const char*> texts;
  for (const SourceText& header : headers) texts.push_back(header.text);
  const std::lock_guard lock(mutex);
  if (last == texts && !last.empty()) return kept;
  Sha256 hash;
  for (const SourceText& header : headers) hash.add_field(header.name).add_field(header.text);
  last = texts;
  return kept = hash;
}

/// The first name that `cubin` lacks of those that a launch asks for; "": it has all. A compiler that stops early says nothing of it.
std::string missing_in(const std::string& cubin, const Program& program) {
  for (const std::string& name : program.kernels) {
    if (!has_kernel(cubin, name)) return "kernel " + name;
  }
  for (const std::string& name : program.variables) {
    if (variable_of(cubin, name).empty()) return "variable " + name;
  }
  return "";
}

/// The command that makes an entry elsewhere. A variant's file is named as it was: its name is part of what is compiled.
std::string warm_command(const Program& program, const std::string& arch) {
  std::string words = kvloom::format("kvloom cache warm --arch {} --key {}", arch, program.key.substr(0, program.key.rfind(':')));
  if (has_timeline(program)) words += " --timeline";
  if (!program.variant_file.empty()) words += " --variant " + program.variant_file;
  return words;
}

std::string compiled(const Program& program, const std::string& arch) {
  nvrtc_for(program.key, arch);  // before anything is announced
  say(program.key, kvloom::format("compiling for {}", arch));
  return compile_aloud(program.key, arch, [&] {
    std::string log;
    return compile_program(program, arch, log);
  });
}

}  // namespace

std::string arch_of(int major, int minor) { return kvloom::format("sm_{}{}", major * 10 + minor, major >= 9 ? "a" : ""); }

void check_arch(const std::string& arch, const char* where) {
  const bool shape = arch.size() >= 5 && arch.size() <= 7 && arch.starts_with("sm_") &&
                     std::all_of(arch.begin() + 3, arch.end() - 1, [](char c) { return c >= '0' && c <= '9'; }) &&
                     ((arch.back() >= '0' && arch.back() <= '9') || arch.back() == 'a' || arch.back() == 'f');
  require(shape, "{}: got \"{}\", wanted an architecture like sm_80, sm_90a or sm_120a", where, arch);
  const int number = std::atoi(arch.c_str() + 3);
  if (number < 80) fail(ErrorCode::unsupported, "{}: got {}, wanted sm_80 or newer; older chips lack the instructions", where, arch);
}

CacheName cache_name(const Program& program, const std::string& arch) {
  Sha256 hash = hash_of_headers(headers_of(program.text));
  hash.add_field(program.text);
  for (const std::string& option : options_of(arch)) hash.add_field(option);
  CacheName name{program.key, arch, hash.hex(), ""};
  std::string why;
  // Without a compiler, or where none may be used, what any compiler made of the same input will do.
  if (!no_jit()) {
    if (const Nvrtc* nvrtc = Nvrtc::find(why)) name.compiler = nvrtc->version();
  }
  return name;
}

bool is_cached(const Program& program, const std::string& arch, const Cache& cache) {
  std::string payload;
  return cache.find(cache_name(program, arch), payload);
}

std::string compile_program(const Program& program, const std::string& arch, std::string& log) {
  check_arch(arch);
  const Nvrtc& nvrtc = nvrtc_for(program.key, arch);
  const std::vector<SourceText> headers = headers_of(program.text);
  const std::vector<std::string> options = options_of(arch);
  Compiled c = nvrtc.compile(program.text, program.key + ".cu", {headers.data(), int64_t(headers.size())}, options);
  log = std::move(c.log);
  if (c.ok) {
    const std::string missing = missing_in(c.cubin, program);
    if (missing.empty()) return std::move(c.cubin);
    fail(ErrorCode::invalid_argument, "jit: {}: {} gives a cubin for {} without {}, wanted it there; {}; the compiler's log:\n{}",
         program.key, nvrtc.version(), arch, missing,
         program.variant_file.empty() ? "use another NVRTC (KVLOOM_NVRTC)"
                                      : "look in " + program.variant_file + " for a macro that takes the library's names away",
         log);
  }
  fail(ErrorCode::invalid_argument, "jit: {}: {} does not compile it for {} (options:{}); its log:\n{}", program.key, nvrtc.version(), arch,
       option_words(options), log);
}

std::string cubin_of(const Program& program, const std::string& arch, const Cache& cache) {
  check_arch(arch);
  const CacheName name = cache_name(program, arch);
  if (no_jit()) {
    std::string payload;
    if (cache.find(name, payload)) return payload;
    fail(ErrorCode::unsupported,
         "jit: {}: got no compiled kernel for {} in the cache ({}), and KVLOOM_NO_JIT=1 forbids compiling; run \"{}\" {}on a machine "
         "with NVRTC and bring its cache here, or unset KVLOOM_NO_JIT",
         program.key, arch, cache.folder().empty() ? "there is none" : cache.folder(), warm_command(program, arch),
         program.variant_file.empty() ? "" : "(the variant's text, in a file of this name) ");
  }
  return cache.find_or_make(
      name, [&] { return compiled(program, arch); }, say_waiting);
}

std::vector<std::string> cubins_of(const std::vector<Program>& programs, const std::string& arch, const Cache& cache) {
  std::vector<std::future<std::string>> others;
  for (size_t i = 1; i < programs.size(); ++i) {
    others.push_back(std::async(std::launch::async, [&programs, &arch, &cache, i] { return cubin_of(programs[i], arch, cache); }));
  }
  std::vector<std::string> cubins;  // a future of async waits for its thread even where an error leaves it behind
  cubins.push_back(cubin_of(programs.at(0), arch, cache));
  for (auto& other : others) cubins.push_back(other.get());
  return cubins;
}

}  // namespace kvloom::jit
