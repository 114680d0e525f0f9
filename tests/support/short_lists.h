// Lists of 0 to 8 keys for every KV head of many requests of one token: a page each.
#pragma once

#include "kvloom/contract/batch.h"

#include <cstdint>
#include <numeric>
#include <vector>

namespace kvloom::test {

struct ShortLists {
  std::vector<int32_t> qo_indptr, kv_len, starts, pages, q_pos0;

  /// `page(l)`: of list l.
  template <class F>
  ShortLists(int32_t requests, int32_t heads, F&& page)
      : qo_indptr(size_t(requests) + 1), kv_len(size_t(heads) * size_t(requests)), starts(kv_len.size() + 1), pages(kv_len.size()), q_pos0(size_t(requests), 0) {
    std::iota(qo_indptr.begin(), qo_indptr.end(), 0);
    std::iota(starts.begin(), starts.end(), 0);
    for (size_t l = 0; l < kv_len.size(); ++l) kv_len[l] = int32_t(l % 9), pages[l] = page(l);
  }

  Batch batch() const {
    Batch b;
    b.num_requests = int32_t(q_pos0.size());
    b.qo_indptr = IndexView(qo_indptr.data(), int64_t(qo_indptr.size()));
    b.kv_len = IndexView(kv_len.data(), int64_t(kv_len.size()));
    b.list_indptr = IndexView(starts.data(), int64_t(starts.size()));
    b.pages = IndexView(pages.data(), int64_t(pages.size()));
    b.lists_per_kv_head = true;
    b.q_pos0 = q_pos0.data();
    return b;
  }
};

}  // namespace kvloom::test
