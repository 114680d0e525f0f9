#include "kvloom/plan/packed.h"

#include "kvloom/base/math.h"

#include <cstring>

namespace kvloom::plan {
namespace {

constexpr int64_t kSectionAlignment = 64;

/// Calls f(offset field of the header, bytes in use, first byte) for every section, in order.
template <class F>
void for_each_section(const PlanView& p, F&& f) {
  const auto section = [&](int64_t PlanHeader::*offset, const auto& span) {
    f(offset, span.size * int64_t(sizeof span[0]), static_cast<const void*>(span.data));
  };
  section(&PlanHeader::groups_offset, p.groups);
  section(&PlanHeader::row_entries_offset, p.row_entries);
  section(&PlanHeader::cta_indptr_offset, p.cta_indptr);
  section(&PlanHeader::items_offset, p.items);
  section(&PlanHeader::units_offset, p.units);
  section(&PlanHeader::entries_offset, p.entries);
  section(&PlanHeader::touches_offset, p.touches);
}

constexpr int64_t kHeaderBytes = (sizeof(PlanHeader) + kSectionAlignment - 1) / kSectionAlignment * kSectionAlignment;

}  // namespace

int64_t write_packed(const PlanView& plan, char* out) {
  PlanHeader header = *plan.header;
  int64_t at = kHeaderBytes;
  for_each_section(plan, [&](int64_t PlanHeader::*offset, int64_t bytes, const void* data) {
    header.*offset = at;
    if (bytes > 0) std::memcpy(out + at, data, size_t(bytes));
    at += round_up(bytes, kSectionAlignment);
  });
  header.total_bytes = at;
  std::memcpy(out, &header, sizeof header);
  return at;
}

void clear_unused(char* plan) {
  const PlanView view = view_plan(plan);
  char* used = plan + sizeof(PlanHeader);
  for_each_section(view, [&](int64_t PlanHeader::*offset, int64_t bytes, const void*) {
    char* const begin = plan + view.header->*offset;
    std::memset(used, 0, size_t(begin - used));
    used = begin + bytes;
  });
  std::memset(used, 0, size_t(plan + view.header->total_bytes - used));
}

}  // namespace kvloom::plan
