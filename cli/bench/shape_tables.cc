#include "cli/bench/shape_tables.h"

#include "kvloom/base/math.h"

#include <algorithm>
#include <numeric>
#include <random>

namespace kvloom::cli {

ShapeTables::ShapeTables(const GpuShape& s) : page_size_(s.spec.page_size) {
  const int32_t requests = int32_t(s.q_len.size());
  for (int32_t r = 0; r < requests; ++r) {
    const int32_t q = s.q_len[size_t(r)], kv = s.kv_len[size_t(r)];
    qo_indptr_.push_back(qo_indptr_.back() + q);
    list_indptr_.push_back(list_indptr_.back() + ceil_div(kv, page_size_));
    mask_indptr_.push_back(mask_indptr_.back() + (int64_t(q) * kv + 7) / 8);
  }
  num_pages_ = list_indptr_.back();
  batch_.num_requests = requests;
  batch_.qo_indptr = IndexView(qo_indptr_.data(), int64_t(qo_indptr_.size()));
  batch_.kv_len = IndexView(s.kv_len.data(), int64_t(s.kv_len.size()));
  batch_.list_indptr = IndexView(list_indptr_.data(), int64_t(list_indptr_.size()));
  capacity_ = {requests, qo_indptr_.back(), std::accumulate(s.kv_len.begin(), s.kv_len.end(), int64_t(0)), 0, 0};
  if (s.spec.storage == Storage::paged) make_pages(s);
}

void ShapeTables::make_pages(const GpuShape& s) {
  const size_t requests = s.q_len.size();
  for (size_t r = 0; r < requests; ++r) num_pages_ -= shared_part(s, r).tokens / page_size_;
  std::vector<int32_t> pool(static_cast<size_t>(num_pages_));
  std::iota(pool.begin(), pool.end(), 0);
  std::shuffle(pool.begin(), pool.end(), std::mt19937(3));
  auto next = pool.begin();
  for (size_t r = 0; r < requests; ++r) {
    const SharedPart part = shared_part(s, r);
    const int32_t shared = part.tokens / page_size_, own = list_indptr_[r + 1] - list_indptr_[r] - shared;
    for (int32_t i = 0; i < shared; ++i) pages_.push_back(pages_[size_t(list_indptr_[size_t(part.with)] + i)]);
    pages_.insert(pages_.end(), next, next + own);
    next += own;
  }
  batch_.pages = IndexView(pages_.data(), int64_t(pages_.size()));
  const bool shares = num_pages_ < list_indptr_.back();
  capacity_.max_level_rows = (s.max_levels > 0 ? s.max_levels : shares ? 1 : 0) * capacity_.max_query_tokens;
}

std::vector<int32_t> ShapeTables::positions() const {
  std::vector<int32_t> positions(size_t(num_pages_) * size_t(page_size_));
  for (size_t r = 0; r + 1 < list_indptr_.size(); ++r) {
    for (int32_t e = list_indptr_[r]; e < list_indptr_[r + 1]; ++e) {
      const auto slot = positions.begin() + int64_t(pages_[size_t(e)]) * page_size_;
      std::iota(slot, slot + page_size_, (e - list_indptr_[r]) * page_size_);
    }
  }
  return positions;
}

}  // namespace kvloom::cli
