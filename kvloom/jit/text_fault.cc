#include "kvloom/jit/text_fault.h"

#include "kvloom/jit/code_text.h"
#include "kvloom/jit/sources.h"
#include "kvloom/support/format.h"

#include <algorithm>

namespace kvloom::jit {
namespace {

constexpr std::string_view kMacro = "KVLOOM_VARIANT(";
constexpr std::string_view kBlanks = " \t\f\v\r";
constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";

void skip_blanks(std::string_view& line) { line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size())); }

std::string_view take_word(std::string_view& line) {
  skip_blanks(line);
  const std::string_view word = line.substr(0, line.find_first_not_of(kLetters));
  line.remove_prefix(word.size());
  return word;
}

/// A line for the preprocessor, with those that it continues on.
struct Directive {
  std::string_view mark;  // "#" or its other spelling; "": the line is none
  std::string_view word;  // "include"
  std::string_view rest;
};

Directive directive_of(std::string_view line) {
  skip_blanks(line);
  Directive d;
  for (const std::string_view mark : {"#", "%:"}) {
    if (line.starts_with(mark)) d.mark = mark;
  }
  line.remove_prefix(d.mark.size());
  d.word = take_word(line);
  skip_blanks(line);
  d.rest = line.substr(0, line.find_last_not_of(kBlanks) + 1);
  return d;
}

/// An include, as the headers of a unit are found by: on one line, by '#', of a name.
std::string include_fault(const Directive& d, std::string_view line, size_t number) {
  const std::string_view name = included(line), system = included(line, '<', '>');
  if (d.mark != "#" || d.word != "include" || (name.empty() && system.empty())) {
    return kvloom::format(
        "line {}: got {}{}{}{}, wanted #include \"NAME\" or #include <NAME> on a line of its own, with a name of the library's "
        "(\"kvloom/attn/exp.h\") or <cmath>, <math.h>",
        number, d.mark, d.word, d.rest.empty() ? "" : " ", d.rest);
  }
  // The host's compiler has others, but a GPU's has not: what a text may use is the same for both.
  if (!system.empty() && find_source(standard_sources(), system) == nullptr) {
    return kvloom::format(
        "line {}: got #include <{}>, wanted <cmath>, <math.h> or the library's own headers (\"kvloom/attn/exp.h\"); a GPU has no standard "
        "library, and kvloom has min_of, max_of, clamp_to, exp2_of, tanh_of and sigmoid_of",
        number, system);
  }
  if (name.empty() || find_source(host_sources(), name) != nullptr) return "";
  return kvloom::format(
      "line {}: got #include \"{}\", wanted none but of the library's own headers (\"kvloom/attn/exp.h\"); a variant is "
      "one text, put what it needs into it",
      number, name);
}

/// `line`: the first of those that `whole` was joined of.
std::string line_fault(std::string_view line, std::string_view whole, size_t number) {
  const Directive d = directive_of(whole);
  if (d.mark.empty()) return "";
  if (d.word == "include" || d.word == "include_next" || d.word == "import") return include_fault(d, line, number);
  if ((d.word == "define" || d.word == "undef") && d.rest.starts_with("KVLOOM_")) {
    return kvloom::format("line {}: got {}{} {}, wanted a name of your own; those that begin with KVLOOM_ are the library's", number,
                          d.mark, d.word, d.rest.substr(0, d.rest.find_first_not_of(kLetters)));
  }
  return "";
}

}  // namespace

std::string_view without_mark(std::string_view text) {
  constexpr std::string_view kMark = "\xef\xbb\xbf";
  if (text.starts_with(kMark)) text.remove_prefix(kMark.size());
  return text;
}

std::string text_fault(const std::string& text) {
  if (text.find('\0') != std::string::npos) return "got a byte of zero in the text, wanted C++";
  if (const size_t at = text.find('\xff'); at != std::string::npos) {
    return kvloom::format("line {}: got a byte of 0xff, wanted C++ in UTF-8, which has none; a GPU's compiler takes it for the text's end",
                          1 + std::count(text.begin(), text.begin() + std::ptrdiff_t(at), '\n'));
  }
  std::string fault, whole;
  std::string_view first;
  size_t first_number = 0;
  const std::string code = code_of(text);
  for_each_line(code, [&](std::string_view line, size_t number) {
    if (!fault.empty()) return;
    if (first_number == 0) first = line, first_number = number;
    const std::string_view trimmed = line.substr(0, line.find_last_not_of(kBlanks) + 1);
    const bool goes_on = trimmed.ends_with('\\');
    whole += goes_on ? trimmed.substr(0, trimmed.size() - 1) : line;
    if (goes_on) return;
    fault = line_fault(first, whole, first_number);
    whole.clear();
    first_number = 0;
  });
  if (!fault.empty()) return fault;
  if (name_in(text).empty()) {
    return "got no line KVLOOM_VARIANT(NAME), wanted one that names the struct with the hooks, after it and at the beginning of the line";
  }
  return "";
}

std::string name_in(const std::string& text) {
  std::string name;
  for_each_line(code_of(text), [&](std::string_view line, size_t) {
    if (!line.starts_with(kMacro) || !name.empty()) return;
    line.remove_prefix(kMacro.size());
    name = line.substr(0, line.find(')'));
  });
  while (!name.empty() && name.front() == ' ') name.erase(0, 1);
  while (!name.empty() && name.back() == ' ') name.pop_back();
  const size_t scope = name.rfind("::");
  return scope == std::string::npos ? name : name.substr(scope + 2);
}

}  // namespace kvloom::jit
