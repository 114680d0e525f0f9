// What must hold of the times that a run took.
#pragma once

#include "kvloom/contract/plan_format.h"
#include "kvloom/contract/timeline.h"
#include "kvloom/support/format.h"

#include <string>

namespace kvloom::test {

/// "" if every item of `plan` was done once by each CTA that it is for, its moments follow each other, the item after the one before, all within the
/// CTA's own time, and every merge unit was merged once; else what is wrong first.
inline std::string timeline_fault(const PlanView& plan, const TimelineLayout& layout, const void* memory) {
  const TimelineView times = view_timeline(memory, layout);
  if (layout.num_items != plan.header->num_items || layout.num_ctas != plan.header->num_ctas * layout.cluster) return "a layout for another plan";
  int64_t merged = 0;
  for (int32_t c = 0; c < layout.num_ctas; ++c) {
    const CtaTimes& cta = times.ctas[c];
    const int32_t list = c / layout.cluster, rank = c % layout.cluster;
    if (cta.begin == 0 || cta.end < cta.begin) return kvloom::format("CTA {}: begins at {}, ends at {}", c, cta.begin, cta.end);
    uint64_t before = cta.begin;
    for (int32_t i = plan.cta_indptr[list]; i < plan.cta_indptr[list + 1]; ++i) {
      const ItemTimes& x = times.items[int64_t(i) * layout.cluster + rank];
      if (i == plan.cta_indptr[list]) {
        if (cta.ready < before) return kvloom::format("CTA {}: begins at {}, ready at {}", c, cta.begin, cta.ready);
        before = cta.ready;
      }
      if (x.cta != c) return kvloom::format("item {}: done by CTA {}, wanted {}", i, x.cta, c);
      if (x.fed < before || x.attended < x.fed || x.stored < x.attended || x.end < x.stored) {
        return kvloom::format("item {}: begin {}, fed {}, attended {}, stored {}, end {}", i, before, x.fed, x.attended, x.stored, x.end);
      }
      if (x.merged < 0 || x.merged > plan.items[i].touch_count) return kvloom::format("item {}: merged {} units of {}", i, x.merged, plan.items[i].touch_count);
      merged += x.merged;
      before = x.end;
    }
    if (cta.end < before) return kvloom::format("CTA {}: its last item ends at {}, itself at {}", c, before, cta.end);
  }
  if (merged != plan.header->num_units) return kvloom::format("{} units merged, wanted {}", merged, plan.header->num_units);
  return "";
}

/// Time of items over the time that their CTAs were there.
inline double timeline_coverage(const PlanView& plan, const TimelineLayout& layout, const void* memory) {
  const TimelineView times = view_timeline(memory, layout);
  double items = 0.0, all = 0.0;
  for (int32_t c = 0; c < layout.num_ctas; ++c) {
    const CtaTimes& cta = times.ctas[c];
    const int32_t list = c / layout.cluster, end = plan.cta_indptr[list + 1];
    all += double(cta.end - cta.begin);
    if (end > plan.cta_indptr[list]) items += double(times.items[int64_t(end - 1) * layout.cluster + c % layout.cluster].end - cta.ready);
  }
  return all > 0.0 ? items / all : 1.0;
}

}  // namespace kvloom::test
