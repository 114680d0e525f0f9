// A batch of one ragged request, and the arrays that it views.
#pragma once

#include "kvloom/contract/batch.h"

#include <cstdint>

namespace kvloom::test {

struct OneRequest {
  int32_t qo_indptr[2], kv_len[1], list_indptr[1];
  Batch batch;

  OneRequest(int64_t q_tokens, int64_t kv_tokens) : qo_indptr{0, int32_t(q_tokens)}, kv_len{int32_t(kv_tokens)}, list_indptr{0} {
    batch.num_requests = 1;
    batch.qo_indptr = IndexView(qo_indptr, 2);
    batch.kv_len = IndexView(kv_len, 1);
    batch.list_indptr = IndexView(list_indptr, 1);
  }
  OneRequest(const OneRequest&) = delete;
  OneRequest& operator=(const OneRequest&) = delete;
};

}  // namespace kvloom::test
