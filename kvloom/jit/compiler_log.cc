#include "kvloom/jit/compiler_log.h"

#include "kvloom/jit/sources.h"

#include <string_view>

namespace kvloom::jit {
namespace {

bool has(std::string_view line, std::string_view words) { return line.find(words) != std::string_view::npos; }

/// Of the library's headers, or of the line behind the user's text (host_unit.cc).
bool is_librarys(std::string_view line) {
  return line.starts_with("the end of ") || find_source(host_sources(), line.substr(0, line.find(':'))) != nullptr;
}

/// Of a static assertion; the second is clang++'s to 15.
bool is_sentence(std::string_view line) { return has(line, "static assertion failed") || has(line, "static_assert failed"); }

/// Others show the source of the one before.
bool is_message(std::string_view line) {
  for (const char* word : {": error: ", ": fatal error: ", ": warning: ", ": note: ", ": In ", ": required from ", ":   required from "}) {
    if (has(line, word)) return true;
  }
  return false;
}

}  // namespace

std::string plain_log(const std::string& log) {
  bool users = false;  // a line of the user's, or a sentence, says what is wrong
  for_each_line(log, [&](std::string_view line, size_t) { users |= has(line, ": error: ") && (!is_librarys(line) || is_sentence(line)); });
  std::string out;
  bool kept = true;
  for_each_line(log, [&](std::string_view line, size_t) {
    if (is_message(line)) kept = !is_librarys(line) || is_sentence(line) || !(users || has(line, ": note: "));
    if (kept && !line.empty()) out.append(line).append("\n");
  });
  return out;
}

}  // namespace kvloom::jit
