// Explicit groups that give a row of Q the same key twice: it would count twice in the softmax, and nobody wants that.
#pragma once

#include "kvloom/contract/batch.h"
#include "kvloom/contract/spec.h"

#include <vector>

namespace kvloom::api {

/// Memory of its own, so that planning allocates nothing once it has been used.
class RepeatedKeys {
 public:
  /// Refuses a batch in which two groups of a query token have the same slot at the same position, where the token sees it by range and prefix (and, for
  /// a custom mask or a user's `keep`, which may hide it, at the same index). `read_ids`: pages may be looked up; else only entries of the table are
  /// compared. `batch` has been validated.
  void check(const AttentionSpec& spec, const Batch& batch, bool read_ids);

 private:
  /// Positions [begin, end) at which groups a and b have the same slots.
  struct Same {
    int32_t a, b;
    int64_t begin, end;
  };
  void index_tokens(const Batch& batch);
  bool has_groups_of_the_one_before(int64_t token) const;
  /// Of all pairs of groups of `token`.
  void find_same(const AttentionSpec& spec, const Batch& batch, int64_t token, bool read_ids);
  void add_same(const AttentionSpec& spec, const Batch& batch, int32_t a, int32_t b, bool read_ids);

  std::vector<int32_t> begin_, group_;  // groups of token t: group_[begin_[t] .. begin_[t + 1])
  std::vector<Same> same_;
};

}  // namespace kvloom::api
