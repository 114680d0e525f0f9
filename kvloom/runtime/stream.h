// Family stream: kernels for few rows of queries on Hopper (device/stream). No family of the registry by itself: units of sm90 have its kernel as
// attend_memory.
#pragma once

#include "kvloom/contract/plan_format.h"
#include "kvloom/contract/spec.h"

#include <string>

namespace kvloom::runtime {

/// Tiles and costs of its items.
KernelClass stream_class(const AttentionSpec& spec);
/// CTAs, one an SM, that read as fast as memory gives.
int32_t stream_saturating_ctas(int32_t num_sms);
/// The configuration, as it stands in a unit.
std::string stream_text(const AttentionSpec& spec);

}  // namespace kvloom::runtime
