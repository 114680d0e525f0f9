#include "cli/replay/step_batch.h"

#include <algorithm>

namespace kvloom::replay {

void StepBatch::lay_out(const Batcher& batcher, const Step& step, int32_t page_size) {
  qo_indptr_.assign(1, 0);
  list_indptr_.assign(1, 0);
  kv_len_.clear();
  pages_.clear();
  tokens_.clear();
  for (const Slice& slice : step.slices) {
    const Sequence& s = batcher.sequences()[size_t(slice.sequence)];
    const int64_t pages = (int64_t(slice.kv_len) + page_size - 1) / page_size;
    pages_.insert(pages_.end(), s.pages.begin(), s.pages.begin() + pages);
    list_indptr_.push_back(int64_t(pages_.size()));
    kv_len_.push_back(slice.kv_len);
    qo_indptr_.push_back(qo_indptr_.back() + slice.q_len);
    const Content& content = batcher.content(s.request);
    for (int64_t pos = slice.kv_len - slice.q_len; pos < slice.kv_len; ++pos) tokens_.push_back(content.token(pos, s.sample));
  }
  batch_ = Batch{};
  batch_.num_requests = int32_t(kv_len_.size());
  batch_.qo_indptr = IndexView(qo_indptr_.data(), int64_t(qo_indptr_.size()));
  batch_.kv_len = IndexView(kv_len_.data(), int64_t(kv_len_.size()));
  batch_.list_indptr = IndexView(list_indptr_.data(), int64_t(list_indptr_.size()));
  batch_.pages = IndexView(pages_.data(), int64_t(pages_.size()));
}

StepBatch::Place StepBatch::place_of(int32_t token) const {
  const size_t r = size_t(std::upper_bound(qo_indptr_.begin(), qo_indptr_.end(), token) - qo_indptr_.begin()) - 1;
  return {kv_len_[r] - qo_indptr_[r + 1] + token, list_indptr_[r]};
}

}  // namespace kvloom::replay
