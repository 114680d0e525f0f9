// A unit: the text of one kernel for one variant, as people would write it. What is compiled, cached and named in logs.
#pragma once

#include "kvloom/contract/spec.h"

#include <string>

namespace kvloom::jit {

struct Unit {
  std::string key;  // "attend.sm80.bf16.d128.paged.causal"; its first line too
  std::string text;
};

/// A variant of the user's own: text that defines a struct with hooks (contract/variant.h).
struct UserVariant {
  std::string name;  // of the struct; "" if there is none
  std::string file;  // where the text is from, for messages; "" if it was handed over as text
  std::string text;
};

/// One attention unit of a family: two configurations (designated initialisers: ".head_dim_qk = 128, ...") joined with the spec's variant.
Unit attend_unit(const std::string& key, const char* family, const AttentionSpec& spec, const std::string& memory_config,
                 const std::string& compute_config, const UserVariant& user = {});

/// The kernels around attention (device/any), the same for every spec: append_kv, apply_rope, merge_states.
Unit ops_unit();

/// The type that joins the parts of a variant, and the headers they need, for messages and units: "Compose<Alibi, SoftCap>".
std::string variant_type(const VariantSpec& variant, const UserVariant& user = {});

}  // namespace kvloom::jit
