// The page lists of a case: which page every list entry names, and how they are handed to a batch.
#pragma once

#include "cli/check/case.h"

#include <cstdint>
#include <vector>

namespace kvloom::check {

/// Never a page: what stands in entries that nobody may read.
inline constexpr int64_t kNoPage = 0x7fffffff;

struct PageLists {
  std::vector<std::vector<int64_t>> lists;     // page ids by list (ragged: the first token alone)
  int64_t num_pages = 0;                       // in the pool (ragged: tokens), a few unused ones among them
  std::vector<std::vector<int32_t>> page_pos;  // KvPosition::page_table only, parallel to `lists`
};

PageLists make_page_lists(const Case& c);

/// `lists` in the form that a Batch wants.
struct PageTable {
  std::vector<int64_t> pages;        // empty: ragged
  std::vector<int64_t> list_indptr;  // [lists] or [lists + 1]; the starts of rows where the table is dense
  std::vector<int32_t> page_pos;     // parallel to pages; KvPosition::page_table only
  int64_t table_stride = 0;          // > 0: dense
};

PageTable make_page_table(const Case& c, const PageLists& lists);

}  // namespace kvloom::check
