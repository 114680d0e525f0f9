// Merging attention states that callers hold: the algebra of attn/state.h over strided tensors of fp32, fp16 or bf16.
#pragma once

#include "kvloom/contract/op_args.h"
#include "kvloom/cpu/element_rows.h"
#include "kvloom/support/thread_pool.h"

namespace kvloom::cpu {

/// Everything has been checked. States with an infinite LSE are empty, whatever their O holds; one live state comes out as it is; no state
/// at all gives (0, -inf). With lists == 2 the output may be one of the inputs (in place).
void merge_states(const MergeArgs& args, const ElementRows& rows, ThreadPool* pool);

}  // namespace kvloom::cpu
