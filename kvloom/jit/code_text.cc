#include "kvloom/jit/code_text.h"

#include <algorithm>
#include <cctype>

namespace kvloom::jit {
namespace {

/// One past the end of the line of `at`; a backslash before the line's end joins the next to it.
size_t line_end(std::string_view text, size_t at) {
  for (size_t end = text.find('\n', at); end != std::string_view::npos; end = text.find('\n', end + 1)) {
    if (text[end - 1] != '\\') return end;
  }
  return text.size();
}

/// One past `closing`, looked for from `at`.
size_t behind(std::string_view text, std::string_view closing, size_t at) {
  const size_t found = text.find(closing, at);
  return found == std::string_view::npos ? text.size() : found + closing.size();
}

/// One past the quote that closes the one at `at`: on its line, if it is well formed.
size_t quoted_end(std::string_view text, size_t at) {
  const char quote = text[at++];
  for (; at < text.size() && text[at] != '\n'; ++at) {
    if (text[at] == quote) return at + 1;
    at += text[at] == '\\';
  }
  return std::min(at, text.size());
}

/// The word (a name, a prefix of a literal, a number) that ends before `at`.
std::string_view word_before(std::string_view text, size_t at) {
  size_t begin = at;
  while (begin > 0 && (std::isalnum(static_cast<unsigned char>(text[begin - 1])) != 0 || text[begin - 1] == '_' || text[begin - 1] == '\''))
    --begin;
  return text.substr(begin, at - begin);
}

bool is_raw(std::string_view prefix) { return prefix == "R" || prefix == "LR" || prefix == "uR" || prefix == "UR" || prefix == "u8R"; }

/// Separates digits: 1'000.
bool is_separator(std::string_view text, size_t at) {
  const std::string_view word = word_before(text, at);
  return !word.empty() && std::isdigit(static_cast<unsigned char>(word.front())) != 0;
}

}  // namespace

std::string code_of(std::string_view text) {
  std::string code(text);
  const auto blank = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) code[i] = code[i] == '\n' ? '\n' : ' ';
    return end;
  };
  for (size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    if (rest.starts_with("//")) {
      at = blank(at, line_end(text, at));
    } else if (rest.starts_with("/*")) {
      at = blank(at, behind(text, "*/", at + 2));
    } else if (rest.front() == '"' && is_raw(word_before(text, at))) {
      const size_t open = std::min(text.find('(', at), text.size());
      at = blank(at, behind(text, ")" + std::string(text.substr(at + 1, open - at - 1)) + "\"", open));
    } else if (rest.front() == '"' || (rest.front() == '\'' && !is_separator(text, at))) {
      at = quoted_end(text, at);
    } else {
      ++at;
    }
  }
  return code;
}

}  // namespace kvloom::jit
