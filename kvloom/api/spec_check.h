// Refusals of a spec, a capacity or options that can never work. Every message: "Engine: field: got X, wanted Y; remedy".
#pragma once

#include "kvloom/api/engine.h"

namespace kvloom::api {

/// The spec as the engine will use it (ragged storage: page_size 1). Throws invalid_argument.
AttentionSpec checked_spec(const AttentionSpec& spec);

/// Throws invalid_argument.
void check_capacity(const Capacity& capacity, const AttentionSpec& spec);
void check_options(const EngineOptions& options);

/// `where`: the function at the head of the message. Throws invalid_argument unless the rotation makes sense for heads of `head_dim`.
void check_rope(const RopeSpec& rope, int32_t head_dim, const char* where);

/// True for a value that names a type.
constexpr bool is_dtype(DType t) { return uint32_t(t) < uint32_t(kNumDTypes); }

}  // namespace kvloom::api
