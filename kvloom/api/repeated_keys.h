// Explicit groups that give a row of Q the same key twice: it would count twice in the softmax, and nobody wants that.
#pragma once

#include "kvloom/contract/batch.h"
#include "kvloom/contract/spec.h"

#include <vector>

namespace kvloom::api {

/// Memory of its own, so that planning allocates nothing once it has been used.
class RepeatedKeys {
 public:
  /// Refuses a batch in which two groups of a query token have the same slot at the same position (and the same column of the mask), where the
  /// token sees it. `read_ids`: pages may be looked up; else only entries of the table are compared. `batch` has been validated.
  void check(const AttentionSpec& spec, const Batch& batch, bool read_ids);

 private:
  void index_tokens(const Batch& batch);
  std::vector<int32_t> begin_, group_;  // groups of token t: group_[begin_[t] .. begin_[t + 1])
};

}  // namespace kvloom::api
