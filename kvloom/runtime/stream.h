// Family stream: kernels for few rows of queries on Hopper (device/stream). No family of the registry by itself: units of sm90 have its kernel as
// attend_memory, and within attend_mixed.
#pragma once

#include "kvloom/contract/plan_format.h"
#include "kvloom/contract/spec.h"
#include "kvloom/device/stream/config.h"

#include <optional>
#include <string>

namespace kvloom::runtime {

/// Tiles and costs of its items, where all SMs have such; and beside SMs that compute (device/mixed).
KernelClass stream_class(const AttentionSpec& spec, bool fixed_split = false);
KernelClass stream_class_beside(const AttentionSpec& spec);
/// Those of items with many rows under fixed_split, where the family has code of their own for them.
std::optional<KernelClass> stream_many_class(const AttentionSpec& spec);
/// CTAs, one an SM, that read as fast as memory gives.
int32_t stream_saturating_ctas(int32_t num_sms);
/// The configuration; under fixed_split, and with the code for many rows.
enum class StreamKind { plain, fixed_split, fixed_split_many };
stream::AttendConfig stream_config(const AttentionSpec& spec, StreamKind kind = StreamKind::plain);
/// As it stands in a unit.
std::string stream_text(const stream::AttendConfig& config);

}  // namespace kvloom::runtime
