// fmt's format strings without fmt's cost: its formatting code is compiled once (format.cc), not in every file that words an error.
// Not a public header.
#pragma once

#include <fmt/core.h>

#include <string>

namespace kvloom {

/// What fmt::vformat gives.
std::string format_erased(fmt::string_view format, fmt::format_args args);

template <class... Args>
std::string format(fmt::format_string<Args...> format_string, Args&&... args) {
  return format_erased(format_string, fmt::make_format_args(args...));
}

}  // namespace kvloom
