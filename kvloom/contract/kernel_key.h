// The one spelling of a kernel, everywhere: log, cache, test, bench, command line.
//   attend.cpu.bf16.kv-e4m3.d128.paged.causal.softcap      attend.cpu.f32.d576-512.ragged
#pragma once

#include "kvloom/contract/spec.h"

#include <string>

namespace kvloom {

/// `task`: attend, merge, append. `family`: cpu-avx2, cpu-avx512, cpu-portable, sm80, sm90.
std::string kernel_key(const char* task, const char* family, const AttentionSpec& spec);

}  // namespace kvloom
