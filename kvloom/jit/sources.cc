#include "kvloom/jit/sources.h"

#include <algorithm>

namespace kvloom::jit {
namespace {

const SourceText* find_source(std::string_view name) {
  for (const SourceText& s : device_sources()) {
    if (name == s.name) return &s;
  }
  return nullptr;
}

/// Calls f(name) for every `#include "name"` line.
template <class F>
void for_each_include(std::string_view text, F&& f) {
  constexpr std::string_view kWord = "#include \"";
  for (size_t at = text.find(kWord); at != std::string_view::npos; at = text.find(kWord, at + 1)) {
    if (at > 0 && text[at - 1] != '\n') continue;
    const size_t begin = at + kWord.size(), end = text.find('"', begin);
    if (end != std::string_view::npos) f(text.substr(begin, end - begin));
  }
}

}  // namespace

std::vector<SourceText> headers_of(std::string_view text) {
  std::vector<SourceText> found;
  std::vector<std::string_view> unread{text};
  while (!unread.empty()) {
    const std::string_view now = unread.back();
    unread.pop_back();
    for_each_include(now, [&](std::string_view name) {
      const SourceText* source = find_source(name);
      const bool seen = std::any_of(found.begin(), found.end(), [&](const SourceText& s) { return name == s.name; });
      if (source == nullptr || seen) return;
      found.push_back(*source);
      unread.emplace_back(source->text);
    });
  }
  std::sort(found.begin(), found.end(), [](const SourceText& a, const SourceText& b) { return std::string_view(a.name) < b.name; });
  return found;
}

}  // namespace kvloom::jit
