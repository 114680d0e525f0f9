// The device sources as texts within the library: every header that a generated unit may include, by the name it is included by.
// Made at build time by cmake/embed.cmake from base, contract, attn, variants and device.
#pragma once

#include "kvloom/base/span.h"

#include <algorithm>
#include <string_view>
#include <vector>

namespace kvloom::jit {

struct SourceText {
  const char* name;  // "kvloom/device/sm80/attend.cuh"
  const char* text;
};

Span<const SourceText> device_sources();
/// Those that the CPU's part of a user's variant includes: the device's plain headers, and of the cpu room what a score stage is made of.
Span<const SourceText> host_sources();

/// What stands in for the standard headers that a user's text may include, <cmath> and <math.h>, where there is no standard library.
Span<const SourceText> standard_sources();

/// The source of that name in `list`; nullptr: there is none.
const SourceText* find_source(Span<const SourceText> list, std::string_view name);

/// The name between the quotes (or other marks) of an #include line, spaces wherever the language has them; "" if it is none.
std::string_view included(std::string_view line, char open = '"', char close = '"');

/// Calls f(line, its number from 1) for every line, without its end.
template <class F>
void for_each_line(std::string_view text, F&& f) {
  for (size_t begin = 0, number = 1; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    f(text.substr(begin, end - begin), number);
    begin = end + 1;
  }
}

/// The headers that `text` includes, directly or not, each once, sorted by name: what a kernel made of it depends on. Names that are
/// neither of device_sources() nor of standard_sources() are left out: the compiler will say so.
std::vector<SourceText> headers_of(std::string_view text);

}  // namespace kvloom::jit
