// Compiled GPU kernels and where they are kept: what `kvloom cache` and `kvloom doctor` ask for. docs/jit.md.
#pragma once

#include "kvloom/contract/spec.h"

#include <functional>
#include <string>
#include <vector>

namespace kvloom {

/// The run-time compiler of this machine. `version` "": there is none; `detail` says why and what to do, else where it lies.
struct CompilerInfo {
  std::string version;
  std::string detail;
};
CompilerInfo kernel_compiler();
/// The C++ compiler for users' variants.
CompilerInfo variant_compiler();

/// Folder of the cache; "": there is none.
std::string kernel_cache_folder();

struct CachedKernel {
  std::string key;       // "attend.sm80.bf16.d128.paged.causal"
  std::string arch;      // "sm_90a"
  std::string compiler;  // "nvrtc 13.0"
  std::string path;
  int64_t bytes = 0;
};
std::vector<CachedKernel> cached_kernels();
/// Throws unless entries can be for `arch`: an architecture (sm_90a), or a CPU target (avx2), which variants of users are compiled for.
/// `where`: the option that it came by, for the message.
void check_cache_arch(const std::string& arch, const char* where);
/// Removes all of them; returns how many files. Throws io where some are left.
int64_t clear_kernel_cache();
/// Copies the entries for which `wanted` into `folder`, which then is a cache (KVLOOM_CACHE_DIR). Returns how many.
int64_t export_kernels(const std::string& folder, const std::function<bool(const CachedKernel&)>& wanted);

/// Families of GPU kernels, as options.kernel takes them.
std::vector<std::string> gpu_family_names();
/// The key of the GPU kernel that runs `spec` on `arch`. Throws unsupported with the reason where none does.
std::string gpu_kernel_key(const AttentionSpec& spec, const std::string& arch, bool fixed_split = false);
/// The source that `key` is compiled from for `arch`; `user`: a variant of the user's on top of it (the key may name it, or not).
/// Throws invalid_argument for a key that is none, unsupported.
/// `timeline`: as engines with options.timeline run it.
std::string kernel_source(const std::string& key, const std::string& arch, const UserVariant* user = nullptr, bool timeline = false);
/// Compiles `key` for `arch` and keeps it; false: it was there already. No GPU is needed. Errors: as for an engine;
/// io where the cache can't be written.
bool warm_kernel(const std::string& key, const std::string& arch, const UserVariant* user = nullptr, bool timeline = false);

/// What an entry of a kernel takes: as ptxas says it, and the shared memory that its launch asks for.
struct KernelResources {
  std::string entry;  // "attend_memory"
  int32_t registers = 0;
  int32_t spill_bytes = 0;   // stores and loads
  int32_t shared_bytes = 0;  // static, and of attention's entries dynamic (contract/unit_facts.h)
  std::vector<std::string> losses;  // remarks on warpgroup instructions: wgmma serialised, waits injected, setmaxnreg ignored
};
/// Compiles `key` afresh, reads the compiler's report and what the cubins say of themselves.
std::vector<KernelResources> kernel_resources(const std::string& key, const std::string& arch, const UserVariant* user = nullptr);

}  // namespace kvloom
