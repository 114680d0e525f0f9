// Proof that a plan is right, independent of the planner that made it: CPU and GPU tests, fuzzers and `check` all ask this.
#pragma once

#include "kvloom/contract/plan_format.h"
#include "kvloom/contract/spec.h"

#include <string>

namespace kvloom::plan {

/// Returns "" if `buffer` holds a sound plan, else one line that names the first fault: offsets and counts within the buffer, every
/// (query token, KV head) covered, every visible (row, key) of every group in exactly one item, partial rows disjoint, every unit's
/// entries complete, in (level, kv begin) order, and touched exactly `arrivals` times, direct rows touched by one item only.
/// `exhaustive` also walks every (row, key) pair with attn/mask.h: slow, for small batches.
std::string validate_plan(const void* buffer, int64_t buffer_bytes, const AttentionSpec& spec, bool exhaustive = false);

}  // namespace kvloom::plan
