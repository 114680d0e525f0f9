// kvloom cache: the compiled GPU kernels of this user. Compiling them ahead of time needs no GPU, on any machine with NVRTC.
#include "cli/command.h"
#include "cli/report/json_output.h"
#include "cli/report/machine.h"
#include "kvloom/api/gpu.h"
#include "kvloom/api/kernels.h"
#include "kvloom/api/user_variant.h"
#include "kvloom/support/check.h"

#include <nlohmann/json.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <thread>

namespace kvloom::cli {
namespace {

struct Arguments {
  std::vector<std::string> keys;
  std::string file, arch, folder, variant, json;
  const UserVariant* user() const { return variant.empty() ? nullptr : variant_from_file(variant); }
  int32_t jobs = 0;
  bool timeline = false;
};

/// The architecture asked for, else that of the first GPU.
std::string arch_of(const Arguments& a) {
  if (!a.arch.empty()) return a.arch;
  std::string why;
  const std::vector<GpuInfo> list = gpus(&why);
  require(!list.empty(), "cache: --arch: got none, and there is no GPU to take it from ({}); wanted one like --arch sm_90a", why);
  return list[0].arch;
}

/// For commands that go through what is there: where that is.
std::string folder_of(const Arguments& a) {
  if (!a.arch.empty()) check_cache_arch(a.arch, "cache: --arch");
  const std::string folder = kernel_cache_folder();
  return folder.empty() ? "no folder: HOME is not set; name one in KVLOOM_CACHE_DIR" : folder;
}

void list(const Arguments& a) {
  const std::string folder = folder_of(a);
  int64_t bytes = 0, count = 0;
  for (const CachedKernel& k : cached_kernels()) {
    if (!a.arch.empty() && k.arch != a.arch) continue;
    std::printf("%-60s %-8s %-12s %9lld bytes\n", k.key.c_str(), k.arch.c_str(), k.compiler.c_str(), static_cast<long long>(k.bytes));
    bytes += k.bytes;
    ++count;
  }
  std::printf("%lld kernels, %.1f MB in %s\n", static_cast<long long>(count), double(bytes) * 1e-6, folder.c_str());
}

/// Keys of the command line and of --file: one a line, # begins a comment.
std::vector<std::string> keys_of(const Arguments& a) {
  std::vector<std::string> keys = a.keys;
  if (a.file.empty()) return keys;
  std::error_code ignored;
  if (std::filesystem::is_directory(a.file, ignored)) {
    fail(ErrorCode::io, "cache: --file: {}: got a folder, wanted a file of kernel keys, one a line", a.file);
  }
  std::ifstream opened;
  if (a.file != "-") opened.open(a.file);
  std::istream& lines = a.file == "-" ? std::cin : opened;
  if (!lines) fail(ErrorCode::io, "cache: --file: {}: can't be read; name a file of kernel keys, one a line", a.file);
  for (std::string line; std::getline(lines, line);) {
    line = line.substr(0, line.find_first_of("# \t\r"));
    if (!line.empty()) keys.push_back(line);
  }
  return keys;
}

/// Compiles keys first, first + step, ...; returns how many failed, each said on stderr.
int warm_some(const std::vector<std::string>& keys, const std::string& arch, const UserVariant* user, bool timeline, size_t first, size_t step) {
  int failed = 0;
  for (size_t i = first; i < keys.size(); i += step) {
    try {
      warm_kernel(keys[i], arch, user, timeline);
    } catch (const Error& e) {
      std::fprintf(stderr, "kvloom: %s\n", e.what());
      ++failed;
    }
  }
  return failed;
}

/// Seconds that a key took, which is there then.
double timed_warm(const std::string& key, const std::string& arch, const Arguments& a) {
  const auto start = std::chrono::steady_clock::now();
  warm_kernel(key, arch, a.user(), a.timeline);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Key after key: how long it took, and how long once it is in the cache (found, read and verified there; no GPU is asked).
int warm_and_report(const std::vector<std::string>& keys, const std::string& arch, const Arguments& a) {
  nlohmann::ordered_json out{{"machine", to_json(this_machine())}, {"arch", arch}, {"compiler", kernel_compiler().version}, {"keys", nlohmann::ordered_json::array()}};
  for (const std::string& key : keys) {
    const double first = timed_warm(key, arch, a);
    out["keys"].push_back({{"key", key}, {"first_s", first}, {"from_cache_s", timed_warm(key, arch, a)}});
  }
  write_json(a.json, out);
  return 0;
}

/// One process a job. Within one, the entries of a key compile side by side.
int warm(const Arguments& a) {
  const std::vector<std::string> keys = keys_of(a);
  require(!keys.empty(), "cache warm: got no keys, wanted some: --key attend.sm80.bf16.d128.paged.causal, or --file FILE");
  const std::string arch = arch_of(a);
  if (!a.json.empty()) return warm_and_report(keys, arch, a);
  const int32_t cores = std::max(1, int32_t(std::thread::hardware_concurrency()) / 2);
  const size_t jobs = size_t(std::min<int64_t>(a.jobs > 0 ? a.jobs : cores, int64_t(keys.size())));
  const UserVariant* const user = a.user();
  if (jobs == 1) return warm_some(keys, arch, user, a.timeline, 0, 1) > 0 ? 1 : 0;
  std::vector<pid_t> children;
  for (size_t j = 0; j < jobs; ++j) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(warm_some(keys, arch, user, a.timeline, j, jobs) > 0 ? 1 : 0);
    if (child > 0) children.push_back(child);
  }
  int bad = children.size() < jobs;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    bad |= !WIFEXITED(status) || WEXITSTATUS(status) != 0;
  }
  std::printf("%zu keys for %s%s\n", keys.size(), arch.c_str(), bad ? ": some failed, see above" : "");
  return bad ? 1 : 0;
}

void add(CLI::App& command, int& exit_code) {
  const auto a = std::make_shared<Arguments>();
  command.require_subcommand(1);
  CLI::App* c = command.add_subcommand("list", "What is in the cache");
  c->add_option("--arch", a->arch, "Only this architecture: sm_90a, ...");
  c->callback([a] { list(*a); });
  c = command.add_subcommand("show", "The source that a key is compiled from");
  c->add_option("key", a->keys, "attend.sm80.bf16.d128.paged.causal")->required();
  c->add_option("--arch", a->arch, "sm_90a, ...; default: the GPU's");
  c->add_option("--variant", a->variant, "A variant of your own on top of the key (docs/variants.md)")->type_name("FILE");
  c->add_flag("--timeline", a->timeline, "As bench and replay run it with --timeline: with marks of time");
  c->callback([a] { std::fputs(kernel_source(a->keys[0], arch_of(*a), a->user(), a->timeline).c_str(), stdout); });
  c = command.add_subcommand("warm", "Compile keys that are not there yet");
  c->add_option("--key", a->keys, "attend.sm80.bf16.d128.paged.causal; may be given again");
  c->add_option("--file", a->file, "Keys, one a line; - is stdin");
  c->add_option("--arch", a->arch, "sm_80, sm_90a, ...; default: the GPU's");
  c->add_option("--variant", a->variant, "A variant of your own on top of every key (docs/variants.md)")->type_name("FILE");
  c->add_flag("--timeline", a->timeline, "As bench and replay run them with --timeline: with marks of time");
  c->add_option("--jobs", a->jobs, "Processes side by side; default: one for two cores")->check(kPositive);
  c->add_option("--json", a->json, "Write to FILE (- is stdout) how long each key took, and how long it takes from the cache; one process")->type_name("FILE")->excludes("--jobs");
  c->callback([a, &exit_code] { exit_code = warm(*a); });
  c = command.add_subcommand("clear", "Remove all of it");
  c->callback([] { std::printf("%lld files removed from %s\n", static_cast<long long>(clear_kernel_cache()), folder_of({}).c_str()); });
  c = command.add_subcommand("export", "Copy it to a folder that serves as a cache elsewhere (KVLOOM_CACHE_DIR)");
  c->add_option("folder", a->folder)->required();
  c->add_option("--arch", a->arch, "Only this architecture");
  c->callback([a] {
    folder_of(*a);
    const int64_t n = export_kernels(a->folder, [&](const CachedKernel& k) { return a->arch.empty() || k.arch == a->arch; });
    std::printf("%lld kernels copied to %s\n", static_cast<long long>(n), a->folder.c_str());
  });
}

const RegisterCommand registered({"cache", "List, make, remove and export compiled GPU kernels", add});

}  // namespace
}  // namespace kvloom::cli
