// When every item of a step began and ended, as the CTA that did it saw it: what a run writes where it is given memory for it (RunTensors::timeline).
// Nanoseconds of one clock for all CTAs: a GPU's global timer, a CPU's steady clock.
#pragma once

#include "kvloom/base/span.h"

namespace kvloom {

/// One item by one CTA, one moment after the other. It begins where the CTA's item before it ends, the first one when the CTA is ready: from there on it
/// is waited for. CTAs of a cluster do an item together, and each has times of its own. 40 bytes.
struct ItemTimes {
  uint64_t fed;       // its queries and the first of its keys are there
  uint64_t attended;  // the last of its keys are done with
  uint64_t stored;    // its rows are written, final or partial
  uint64_t end;       // ... and the merge units that it was the last to arrive at
  int32_t cta;
  int32_t merged;     // of those
};
static_assert(sizeof(ItemTimes) == 40);

/// A CTA from its first instruction to its last. 32 bytes.
struct CtaTimes {
  uint64_t begin;
  uint64_t ready;  // it knows its items
  uint64_t end;
  int32_t place;   // where it ran: SM, or thread of the CPU
  int32_t unused;
};
static_assert(sizeof(CtaTimes) == 32);

/// The memory of a timeline: CtaTimes of every CTA, then ItemTimes of every item, those of a cluster's CTAs side by side.
struct TimelineLayout {
  int32_t num_ctas = 0;   // that are launched: `cluster` for each that the plan has
  int32_t cluster = 1;
  int32_t num_items = 0;

  KVLOOM_HD int64_t bytes() const {
    return int64_t(num_ctas) * int64_t(sizeof(CtaTimes)) + int64_t(num_items) * cluster * int64_t(sizeof(ItemTimes));
  }
};

struct TimelineView {
  Span<const CtaTimes> ctas;
  Span<const ItemTimes> items;  // [num_items][cluster]
};

KVLOOM_HD TimelineView view_timeline(const void* memory, const TimelineLayout& layout) {
  const auto* ctas = static_cast<const CtaTimes*>(memory);
  return {{ctas, layout.num_ctas}, {reinterpret_cast<const ItemTimes*>(ctas + layout.num_ctas), int64_t(layout.num_items) * layout.cluster}};
}

}  // namespace kvloom
