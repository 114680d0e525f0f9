// Random cases for a GPU. Every shape of a key is a kernel to compile, so cases are bent to a committed list of keys that has every dtype,
// dim, store and feature; lengths, pages, heads, positions, masks and values stay as random as they were.
#pragma once

#include "cli/check/case.h"

#include <string>
#include <vector>

namespace kvloom::check {

/// The family that a case made for `family` runs on under this policy: chunks of keys that RoPE turns are folded by sm80 alone.
std::string family_under(bool fixed_split, const std::string& family, const AttentionSpec& spec);

/// The keys that cases are bent to, both for policies that may fold chunks and for those that do not.
std::vector<std::string> gpu_check_keys();

/// Gives `c` types that GPU kernels have (fp32 becomes bf16) and memory that they can read; all else stays.
void put_on_gpu(Case& c);

/// Makes `c` a case of one of those keys, chosen by `index`; other variants keep their values. `for_user`: of a key without a variant of
/// the library's that changes logits, for a user's to stand alone.
void bend_for_gpu(Case& c, int64_t index, bool for_user = false);

}  // namespace kvloom::check
