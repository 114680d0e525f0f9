// What all compilations have in common, for GPUs and for the host: whether they are allowed, and what is said of them on stderr (unless
// KVLOOM_JIT_QUIET=1).
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace kvloom::jit {

/// KVLOOM_NO_JIT=1: nothing is compiled, only what is in the cache serves.
bool no_jit();

/// "kvloom: KEY: TEXT".
void say(const std::string& key, std::string_view text);
/// That another process has the lock of `key`: for Cache::find_or_make.
void say_waiting(const std::string& key);
/// What `compile` gives, and says how long it took.
std::string compile_aloud(const std::string& key, std::string_view target, const std::function<std::string()>& compile);

/// Options as a command line has them, for messages: " -a -b".
std::string option_words(const std::vector<std::string>& options);

}  // namespace kvloom::jit
