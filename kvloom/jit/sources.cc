#include "kvloom/jit/sources.h"

#include "kvloom/jit/code_text.h"

#include <algorithm>

namespace kvloom::jit {

const SourceText* find_source(Span<const SourceText> list, std::string_view name) {
  if (name.empty()) return nullptr;
  for (const SourceText& s : list) {
    if (name == s.name) return &s;
  }
  return nullptr;
}

std::string_view included(std::string_view line, char open, char close) {
  const auto take = [&](std::string_view word) {
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    if (!line.starts_with(word)) return false;
    line.remove_prefix(word.size());
    return true;
  };
  if (!take("#") || !take("include") || !take({&open, 1})) return {};
  return line.substr(0, line.find(close));
}

std::vector<SourceText> headers_of(std::string_view text) {
  std::vector<SourceText> found;
  const std::string code = code_of(text);
  std::vector<std::string_view> unread{code};
  while (!unread.empty()) {
    const std::string_view now = unread.back();
    unread.pop_back();
    for_each_line(now, [&](std::string_view line, size_t) {
      const SourceText* source = find_source(device_sources(), included(line));
      if (source == nullptr) source = find_source(standard_sources(), included(line, '<', '>'));
      if (source == nullptr) return;
      const bool seen = std::any_of(found.begin(), found.end(), [&](const SourceText& s) { return s.name == source->name; });
      if (seen) return;
      found.push_back(*source);
      unread.emplace_back(source->text);
    });
  }
  std::sort(found.begin(), found.end(), [](const SourceText& a, const SourceText& b) { return std::string_view(a.name) < b.name; });
  return found;
}

}  // namespace kvloom::jit
