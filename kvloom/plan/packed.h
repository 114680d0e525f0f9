// A plan without the room that its capacity keeps: what is worth copying to a device. A view of it is read like any other, by the offsets
// of its header.
#pragma once

#include "kvloom/contract/plan_format.h"

namespace kvloom::plan {

/// Bytes of the packed plan; never more than the plan's own.
int64_t packed_bytes(const PlanView& plan);
/// Writes the header and the used part of every section one behind another; bytes between them are left as they are.
void write_packed(const PlanView& plan, char* out);

}  // namespace kvloom::plan
