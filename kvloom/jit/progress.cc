#include "kvloom/jit/progress.h"

#include "kvloom/support/files.h"
#include "kvloom/support/format.h"

#include <chrono>
#include <cstdio>

namespace kvloom::jit {

bool no_jit() { return environment("KVLOOM_NO_JIT") == "1"; }

void say(const std::string& key, std::string_view text) {
  if (environment("KVLOOM_JIT_QUIET") == "1") return;
  std::fputs(kvloom::format("kvloom: {}: {}\n", key, text).c_str(), stderr);
}

void say_waiting(const std::string& key) { say(key, "another process compiles it, waiting"); }

std::string compile_aloud(const std::string& key, std::string_view target, const std::function<std::string()>& compile) {
  const auto start = std::chrono::steady_clock::now();
  std::string made = compile();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  say(key, kvloom::format("compiled for {} in {:.2f} s", target, seconds));
  return made;
}

std::string option_words(const std::vector<std::string>& options) {
  std::string words;
  for (const std::string& option : options) words += " " + option;
  return words;
}

}  // namespace kvloom::jit
