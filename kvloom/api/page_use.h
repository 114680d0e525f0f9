// Which page ids (ragged: tokens) the rows of a plan can see: read once when the step is planned, compared with K and V when it runs.
#pragma once

#include "kvloom/contract/batch.h"
#include "kvloom/contract/plan_format.h"
#include "kvloom/contract/spec.h"

namespace kvloom::api {

/// The extremes over everything that a run of the plan may read.
struct PageUse {
  int64_t min_id = 0;      // smallest page id (ragged: token) if it is below 0, else 0
  int64_t max_id = -1;     // largest page id (ragged: token); -1: nothing is read
  int64_t min_entry = -1;  // where they stand in `pages`
  int64_t max_entry = -1;
  int64_t entries_end = 0;  // one past the last entry of `pages` that is read
};

/// `pages`: where the ids are read; entries outside what rows can see (before a window, behind the last token) are never looked at. With
/// read_ids false only entries_end is found (ragged: max_id too, which needs no ids). O(entries seen).
PageUse find_page_use(const AttentionSpec& spec, const PlanView& plan, IndexView pages, bool read_ids);

/// A request that reads entry `entry` of the page table (ragged: token `entry`), for messages.
int32_t request_reading(const AttentionSpec& spec, const PlanView& plan, int64_t entry);

}  // namespace kvloom::api
