// A step as the engine sees it, in host memory: lengths, page tables, and which content stands in the new tokens.
#pragma once

#include "cli/replay/batcher.h"
#include "kvloom/contract/batch.h"

namespace kvloom::replay {

class StepBatch {
 public:
  void lay_out(const Batcher& batcher, const Step& step, int32_t page_size);

  /// Points into this.
  const Batch& batch() const { return batch_; }
  /// Content number of every query token.
  const std::vector<uint64_t>& tokens() const { return tokens_; }
  int64_t num_tokens() const { return int64_t(tokens_.size()); }
  const std::vector<int32_t>& pages() const { return pages_; }

  /// Where a query token stands: its position in its request, and the request's first entry of pages().
  struct Place {
    int32_t pos;
    int64_t list_begin;
  };
  Place place_of(int32_t token) const;

 private:
  std::vector<int32_t> qo_indptr_, kv_len_, pages_;
  std::vector<int64_t> list_indptr_;
  std::vector<uint64_t> tokens_;
  Batch batch_;
};

}  // namespace kvloom::replay
