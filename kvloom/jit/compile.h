// program -> cubin: from the cache, or through NVRTC and into the cache.
#pragma once

#include "kvloom/jit/cache.h"
#include "kvloom/jit/unit.h"

#include <string>
#include <vector>

namespace kvloom::jit {

/// What a cubin is made of, apart from the compiler: source, every header it includes, options and architecture.
CacheName cache_name(const Program& program, const std::string& arch);

/// True if `program` is in the cache and needs no compiler.
bool is_cached(const Program& program, const std::string& arch, const Cache& cache);

/// The cubin of `program` for `arch` ("sm_90a"). Says on stderr what is compiled and how long it took.
/// Errors: unsupported (no NVRTC; KVLOOM_NO_JIT=1 and not in the cache; an architecture that NVRTC does not know), invalid_argument
/// (it does not compile: the compiler's whole log).
std::string cubin_of(const Program& program, const std::string& arch, const Cache& cache = Cache::of_environment());

/// The same, always compiled, never cached. `log`: the compiler's words, ptxas' resource lines among them.
std::string compile_program(const Program& program, const std::string& arch, std::string& log);

/// The cubins of all programs (one at least), in their order, compiled side by side. Errors: those of cubin_of, of the first that fails.
std::vector<std::string> cubins_of(const std::vector<Program>& programs, const std::string& arch, const Cache& cache = Cache::of_environment());

/// "sm_90a" of a compute capability: with the letter where the family has instructions of its own chips.
std::string arch_of(int major, int minor);
/// Throws invalid_argument unless `arch` looks like sm_80, sm_90a, sm_120a. `where`: the option that it came by, for the message.
void check_arch(const std::string& arch, const char* where = "jit: arch");

}  // namespace kvloom::jit
