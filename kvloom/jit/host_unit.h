// The CPU's part of a user's variant as one text: all headers inlined, so that nothing but the C library's is read from disk.
#pragma once

#include "kvloom/contract/user_variant.h"
#include "kvloom/jit/unit.h"

#include <vector>

namespace kvloom::jit {

/// A CPU target: its name (the namespace of its kernels) and the compiler's options for it.
struct HostTarget {
  const char* name;  // "avx2"
  std::vector<std::string> options;
};

/// The unit of the variant of `spec` (which has a user's) for `target`. Its key: "variant.NAME", parts of the library's before it.
Program host_unit(const VariantSpec& spec, const HostTarget& target);

/// `text` with the line of every header that is embedded replaced by the header, once.
std::string with_headers(const std::string& text);

/// Options of every unit.
std::vector<std::string> host_options(const HostTarget& target);

}  // namespace kvloom::jit
