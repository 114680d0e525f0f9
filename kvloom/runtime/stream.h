// Family stream: kernels for few rows of queries on Hopper (device/stream). No family of the registry by itself: units of sm90 have its kernel as
// attend_memory.
#pragma once

#include "kvloom/contract/plan_format.h"
#include "kvloom/contract/spec.h"

#include <optional>
#include <string>

namespace kvloom::runtime {

/// Tiles and costs of its items.
KernelClass stream_class(const AttentionSpec& spec, bool fixed_split = false);
/// Those of items with many rows under fixed_split, where the family has code of their own for them.
std::optional<KernelClass> stream_many_class(const AttentionSpec& spec);
/// CTAs, one an SM, that read as fast as memory gives.
int32_t stream_saturating_ctas(int32_t num_sms);
/// The configuration, as it stands in a unit; under fixed_split, and with the code for many rows.
enum class StreamKind { plain, fixed_split, fixed_split_many };
std::string stream_text(const AttentionSpec& spec, StreamKind kind = StreamKind::plain);

}  // namespace kvloom::runtime
