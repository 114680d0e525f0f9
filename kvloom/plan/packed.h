// A plan without the room that its capacity keeps: what is worth copying to a device. A view of it is read like any other, by the offsets
// of its header.
#pragma once

#include "kvloom/contract/plan_format.h"

namespace kvloom::plan {

/// Writes the header and the used part of every section one behind another, and returns their bytes: never more than the plan's own.
/// Bytes between sections are left as they are.
int64_t write_packed(const PlanView& plan, char* out);

/// Makes everything of a plan in fixed sections (a buffer of header.total_bytes) zero but what is counted.
void clear_unused(char* plan);

}  // namespace kvloom::plan
