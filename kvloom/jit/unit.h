// A unit: the text of one kernel for one variant, as people would write it. What is compiled, cached and named in logs. A kernel of several
// entries is as many programs, which differ in their last line: they compile side by side, and the longest is all that one waits for.
#pragma once

#include "kvloom/contract/spec.h"
#include "kvloom/contract/user_variant.h"

#include <string>
#include <utility>
#include <vector>

namespace kvloom::jit {

/// What is compiled by itself.
struct Program {
  std::string key;  // of the unit; with several programs followed by the entry: "attend.sm80.bf16.d128.paged:attend_mixed"
  std::string text;
};

struct Unit {
  struct Entry {
    std::string name;  // "attend_mixed"
    std::string line;  // that makes it
  };
  std::string key;   // "attend.sm80.bf16.d128.paged"; its first line too
  std::string text;  // what all entries share
  std::vector<Entry> entries;

  /// One of each entry.
  std::vector<Program> programs() const;
  /// All of it, for people.
  std::string whole() const;
};

/// The configurations of an attention unit, as designated initialisers: ".head_dim_qk = 128, ...".
struct AttendConfigs {
  std::string memory, compute;
  std::string mixed_memory;  // of the memory class beside the compute class, where that is another; "": the same
};

/// One attention unit of a family: its configurations joined with the spec's variant.
/// A user's text stands in it as it is, under its own file name and line numbers.
Unit attend_unit(const std::string& key, const char* family, const AttentionSpec& spec, const AttendConfigs& configs);

/// The kernels around attention (device/any), the same for every spec: append_kv, apply_rope, merge_states.
Program ops_program();

/// The type that joins the parts of a variant, for messages and units: "Compose<Alibi, SoftCap>".
std::string variant_type(const VariantSpec& variant);
/// The #include lines of its parts.
std::string variant_headers(const VariantSpec& variant);
/// A user's text with its name and lines.
std::string user_text(const UserVariant& user);

}  // namespace kvloom::jit
