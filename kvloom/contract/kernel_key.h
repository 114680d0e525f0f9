// The one spelling of a kernel, everywhere: log, cache, test, bench, command line.
//   attend.cpu-avx2.bf16.kv-e4m3.d128.paged.causal.softcap      attend.cpu-avx2.f32.d576-512.ragged
// A variant of the user's comes last, by the name of its struct: attend.sm80.bf16.d128.paged.user-AlibiSlopes
#pragma once

#include "kvloom/contract/spec.h"

#include <string>

namespace kvloom {

/// `task`: attend, merge, append. `family`: a row of runtime/registry.cc (cpu-avx2, cpu-avx512, cpu-portable, sm80, sm90); any: not chosen yet.
/// `fixed_split`: of a kernel that a batch-invariant policy needs.
std::string kernel_key(const char* task, const char* family, const AttentionSpec& spec, bool fixed_split = false);

/// The key of what is compiled for a spec: order, windows and sinks are data of every GPU kernel, so all of their spellings are one.
std::string unit_key(const char* family, const AttentionSpec& spec, bool fixed_split);

/// How a key is spelt, for messages: words in this order, those in brackets only where the spec has it.
inline constexpr const char* kKeySpelling =
    "TASK.FAMILY.TYPE[.kv-TYPE][.o-TYPE].dDIM[-DIM].paged|ragged[.causal][.window][.alibi][.softcap][.mask][.sink][.sigmoid]"
    "[.rope-interleaved|.rope-half][.user-NAME][.fixed-split]";

/// What a key says: the spec that it is spelled from, with plain values where a key has presence alone (soft cap 30, window 128, one head).
struct ParsedKey {
  std::string task, family;
  AttentionSpec spec;
  std::string user;  // name of a user's variant; its text is not in a key, so spec.variant.user is not set
  bool fixed_split = false;
  std::string fault;  // "" or the word that is wrong
};
ParsedKey parse_kernel_key(const std::string& key);

}  // namespace kvloom
