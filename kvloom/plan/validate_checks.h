// The steps of validate_plan(), in the order they must run: each relies on what the ones before it have shown. All return "" or the first
// fault in one line. Private to the room.
#pragma once

#include "kvloom/base/math.h"
#include "kvloom/contract/plan_format.h"
#include "kvloom/contract/spec.h"
#include "kvloom/support/format.h"

#include "kvloom/support/format.h"

#include <string>

namespace kvloom::plan {

/// A plan under examination. `group_size` and `kv_heads` are at least 1.
struct Subject {
  PlanView plan;
  KeyRange range;
  int32_t group_size;
  int32_t kv_heads;

  const PlanHeader& header() const { return *plan.header; }
  /// Packed rows of a group, for one KV head.
  int64_t rows_of(const RowGroup& g) const { return int64_t(g.token_count) * group_size; }
};

/// One fault, spelled as an error is: "what: got X, wanted Y".
template <class... Args>
std::string fault(fmt::format_string<Args...> format, Args&&... args) {
  return kvloom::format(format, std::forward<Args>(args)...);
}

/// Header fields, section offsets and counts: afterwards every span of the view lies within the buffer.
std::string check_header(const PlanHeader& header, int64_t buffer_bytes);
/// Row lists, positions, CTA lists and items: afterwards every index of a group or an item is in range.
std::string check_groups(const Subject& s);
std::string check_items(const Subject& s);
/// Every key that a row of a group can see lies in exactly one item of that row.
std::string check_keys(const Subject& s);
/// The same, asked of attn/mask.h for every (row, key) pair.
std::string check_keys_exhaustively(const Subject& s);
/// Partial rows are disjoint, merge lists complete, ordered and touched as often as they have entries.
std::string check_merges(const Subject& s);
/// Every (query token, q head) is written once: by one direct item or by one merge unit.
std::string check_outputs(const Subject& s);

}  // namespace kvloom::plan
