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
  std::vector<std::string> kernels = {};    // by name: what the cubin must have
  std::vector<std::string> variables = {};  // the same of device variables: "attend_mixed_facts"
  std::string variant_file = "";            // that the user's text in it is called by; "": there is none
};

struct Unit {
  struct Entry {
    std::string name;  // "attend_mixed"
    std::string line;  // that makes it
  };
  std::string key;   // "attend.sm80.bf16.d128.paged"; its first line too
  std::string text;  // what all entries share
  std::vector<Entry> entries;
  std::string variant_file = "";

  /// One of each entry.
  std::vector<Program> programs() const;
  /// All of it, for people.
  std::string whole() const;
};

/// Of an attention unit: a configuration of a family, as designated initialisers: ".head_dim_qk = 128, ...".
struct UnitConfig {
  std::string family;  // "sm80"
  std::string name;    // "kMemory"
  std::string text;
};
/// An entry of an attention unit, made by KVLOOM_SM80_ATTEND(name, configs, Variant).
struct UnitEntry {
  std::string name;  // "attend_memory"
  std::string macro;
  std::string configs;  // names, as the macro takes them
};

/// One attention unit: configurations joined with the spec's variant.
/// A user's text stands in it as it is, under its own file name and line numbers.
Unit attend_unit(const std::string& key, const AttentionSpec& spec, const std::vector<UnitConfig>& configs, const std::vector<UnitEntry>& entries);

/// The same with marks of time (device/block/timeline.cuh): other machine code, so another entry of the cache.
Unit with_timeline(Unit unit);
bool has_timeline(const Program& program);

/// The kernels around attention (device/any), the same for every spec: append_kv, apply_rope, merge_states.
Program ops_program();

/// The device's planner, the same for every spec: plan_stream.
Program plan_program();

/// The type that joins the parts of a variant, for messages and units: "Compose<Alibi, SoftCap>".
std::string variant_type(const VariantSpec& variant);
/// The #include lines of its parts.
std::string variant_headers(const VariantSpec& variant);
/// A user's text with its name and lines.
std::string user_text(const UserVariant& user);

}  // namespace kvloom::jit
