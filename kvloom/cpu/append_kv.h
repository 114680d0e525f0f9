// New keys and values into their pages, converted, scaled and (keys) rotated on the way; and rotation by itself.
#pragma once

#include "kvloom/contract/op_args.h"
#include "kvloom/cpu/element_rows.h"
#include "kvloom/support/thread_pool.h"

namespace kvloom::cpu {

/// Everything has been checked. fp8 pages hold value / scale.
void append_kv(const AppendArgs& args, const ElementRows& rows, ThreadPool* pool);

void apply_rope(const RopeArgs& args, const ElementRows& rows, ThreadPool* pool);

}  // namespace kvloom::cpu
