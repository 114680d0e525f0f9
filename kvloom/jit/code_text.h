// A C++ text as far as lines can be understood without compiling it: what in it is no code.
#pragma once

#include <string>
#include <string_view>

namespace kvloom::jit {

/// `text` with comments and raw strings blanked: the same lines, of the same length.
std::string code_of(std::string_view text);

}  // namespace kvloom::jit
