// What a cubin holds besides code: read here where no GPU has loaded it.
#pragma once

#include <string>
#include <string_view>

namespace kvloom::jit {

/// The bytes that device variable `name` (extern "C", initialised) begins with; "" if `cubin` has no such variable, or is no ELF file of 64 bits.
std::string variable_of(std::string_view cubin, std::string_view name);

/// True if `cubin` has kernel `name` (extern "C").
bool has_kernel(std::string_view cubin, std::string_view name);

}  // namespace kvloom::jit
