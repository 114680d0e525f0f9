// The device sources as texts within the library: every header that a generated unit may include, by the name it is included by.
// Made at build time by cmake/embed.cmake from base, contract, attn, variants and device.
#pragma once

#include "kvloom/base/span.h"

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

/// The headers that `text` includes, directly or not, each once, sorted by name: what a kernel made of it depends on. Names that are not
/// among device_sources() are left out: the compiler will say so.
std::vector<SourceText> headers_of(std::string_view text);

}  // namespace kvloom::jit
