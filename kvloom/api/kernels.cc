#include "kvloom/api/kernels.h"

#include "kvloom/api/user_variant.h"
#include "kvloom/contract/kernel_key.h"
#include "kvloom/contract/unit_facts.h"
#include "kvloom/cpu/target.h"
#include "kvloom/jit/compile.h"
#include "kvloom/jit/cubin.h"
#include "kvloom/jit/host_compiler.h"
#include "kvloom/jit/nvrtc.h"
#include "kvloom/runtime/registry.h"
#include "kvloom/support/check.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace kvloom {
namespace {

CachedKernel of(const jit::CacheEntry& e) { return {e.name.key, e.name.target, e.name.compiler, e.path, e.bytes}; }

const runtime::AttendKernel* family_of(const std::string& name) {
  for (const runtime::AttendKernel& k : runtime::attend_kernels()) {
    if (k.backend == Backend::cuda && name == k.family) return &k;
  }
  return nullptr;
}

jit::Unit unit_of(const std::string& key, const std::string& arch, const UserVariant* user, bool timeline) {
  ParsedKey k = parse_kernel_key(key);
  const runtime::AttendKernel* family = family_of(k.family);
  require(k.task == "attend" && family != nullptr,
          "kernel key: got \"{}\", wanted one of a GPU family, like attend.sm80.bf16.d128.paged.causal, or ops.any, plan.stream", key);
  require(k.fault.empty(), "kernel key: {}: got {}, wanted words in this order: {}", key, k.fault, kKeySpelling);
  require(k.user.empty() || (user != nullptr && k.user == user->name),
          "kernel key: got {} of {}, wanted the variant of that name; a key does not hold its text: give it by --variant FILE", key,
          user != nullptr ? user->name : "no variant");
  k.spec.variant.user = user;
  k.spec = with_user_variant(k.spec);
  const runtime::GpuTarget target = runtime::typical_target(arch);
  const std::string refusal = family->gpu.refusal(k.spec, target, k.fixed_split);
  if (!refusal.empty()) fail(ErrorCode::unsupported, "{}: no kernel for {}: {}", key, arch, refusal);
  const jit::Unit unit = family->gpu.unit(k.spec, target, k.fixed_split);
  return timeline ? jit::with_timeline(unit) : unit;
}

/// What a key is compiled as: an attention unit entry by entry, or one of the programs that are the same for every spec.
std::vector<jit::Program> programs_of(const std::string& key, const std::string& arch, const UserVariant* user, bool timeline) {
  for (const jit::Program& program : {jit::ops_program(), jit::plan_program()}) {
    if (program.key == key) return {program};
  }
  return unit_of(key, arch, user, timeline).programs();
}

/// The number before `word` in a line of ptxas' report; 0 if the word is not there.
int32_t number_before(const std::string& line, const char* word) {
  const size_t at = line.find(word);
  if (at == std::string::npos) return 0;
  size_t begin = line.find_last_not_of("0123456789", at - 2);
  begin = begin == std::string::npos ? 0 : begin + 1;
  return std::atoi(line.c_str() + begin);
}

/// Dynamic shared memory of `entry`; 0 if it says nothing of its launch, as entries that are not attention's.
int32_t dynamic_shared_bytes(const std::string& cubin, const std::string& entry) {
  const std::string bytes = jit::variable_of(cubin, entry + "_facts");
  if (bytes.empty()) return 0;
  KernelFacts facts{};
  if (bytes.size() != sizeof facts) fail(ErrorCode::internal, "{}_facts: got {} bytes in the cubin, wanted {}", entry, bytes.size(), sizeof facts);
  std::memcpy(&facts, bytes.data(), sizeof facts);
  return facts.shared_bytes;
}

/// Of the one entry that a program has.
KernelResources resources_of(const std::string& cubin, const std::string& log) {
  KernelResources r;
  for (size_t begin = 0; begin < log.size();) {
    const size_t end = std::min(log.find('\n', begin), log.size());
    const std::string line = log.substr(begin, end - begin);
    begin = end + 1;
    constexpr const char* kEntry = "Compiling entry function '";
    if (const size_t name = line.find(kEntry); name != std::string::npos) {
      const size_t first = name + std::strlen(kEntry);
      r.entry = line.substr(first, line.find('\'', first) - first);
    }
    r.registers += number_before(line, "registers");
    r.spill_bytes += number_before(line, "bytes spill stores") + number_before(line, "bytes spill loads");
    r.shared_bytes += number_before(line, "bytes smem");
    if (line.find("(C75") != std::string::npos) r.losses.push_back(line);
  }
  r.shared_bytes += dynamic_shared_bytes(cubin, r.entry);
  return r;
}

}  // namespace

CompilerInfo kernel_compiler() {
  std::string why;
  const jit::Nvrtc* nvrtc = jit::Nvrtc::find(why);
  if (nvrtc == nullptr) return {"", why};
  return {nvrtc->version(), nvrtc->path()};
}

CompilerInfo variant_compiler() {
  std::string why;
  const jit::HostCompiler* compiler = jit::HostCompiler::find(why);
  if (compiler == nullptr) return {"", why};
  return {compiler->version(), compiler->path()};
}

std::string kernel_cache_folder() { return jit::Cache::of_environment().folder(); }

std::vector<CachedKernel> cached_kernels() {
  std::vector<CachedKernel> list;
  for (const jit::CacheEntry& e : jit::Cache::of_environment().list()) list.push_back(of(e));
  return list;
}

void check_cache_arch(const std::string& arch, const char* where) {
  cpu::Target target;
  if (!cpu::parse_target(arch.c_str(), target)) jit::check_arch(arch, where);
}

int64_t clear_kernel_cache() { return jit::Cache::of_environment().clear(); }

int64_t export_kernels(const std::string& folder, const std::function<bool(const CachedKernel&)>& wanted) {
  return jit::Cache::of_environment().export_to(folder, [&](const jit::CacheEntry& e) { return wanted(of(e)); });
}

std::vector<std::string> gpu_family_names() {
  std::vector<std::string> names;
  for (const runtime::AttendKernel& k : runtime::attend_kernels()) {
    if (k.backend == Backend::cuda) names.emplace_back(k.family);
  }
  return names;
}

std::string gpu_kernel_key(const AttentionSpec& spec, const std::string& arch, bool fixed_split) {
  return runtime::choose_attend(spec, {Backend::cuda, nullptr, -1, arch.c_str(), nullptr, fixed_split}).winner().key;
}

std::string kernel_source(const std::string& key, const std::string& arch, const UserVariant* user, bool timeline) {
  for (const jit::Program& program : {jit::ops_program(), jit::plan_program()}) {
    if (program.key == key) return program.text;
  }
  return unit_of(key, arch, user, timeline).whole();
}

bool warm_kernel(const std::string& key, const std::string& arch, const UserVariant* user, bool timeline) {
  const std::vector<jit::Program> programs = programs_of(key, arch, user, timeline);
  const jit::Cache cache = jit::Cache::of_environment();
  const auto is_cached = [&] {
    return std::all_of(programs.begin(), programs.end(), [&](const jit::Program& p) { return jit::is_cached(p, arch, cache); });
  };
  if (is_cached()) return false;
  jit::cubins_of(programs, arch, cache);
  if (!is_cached()) {
    fail(ErrorCode::io,
         "cache warm: {}: compiled for {}, but not kept: the cache ({}) can't be written; name a folder that can in KVLOOM_CACHE_DIR",
         key, arch, cache.folder().empty() ? "none" : cache.folder());
  }
  return true;
}

std::vector<KernelResources> kernel_resources(const std::string& key, const std::string& arch, const UserVariant* user) {
  std::vector<KernelResources> list;
  for (const jit::Program& program : programs_of(key, arch, user, false)) {
    std::string log;
    const std::string cubin = jit::compile_program(program, arch, log);
    list.push_back(resources_of(cubin, log));
  }
  return list;
}

}  // namespace kvloom
