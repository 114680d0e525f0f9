#include "cli/replay/kv_store.h"

#include "kvloom/support/check.h"

#include <sys/mman.h>
#include <cerrno>
#include <cstring>

namespace kvloom::replay {
KvStore::KvStore(const Model& model, const KvShape& shape, uint64_t seed)

    : model_(model),
      shape_(shape),
      element_(size_of(shape.dtype)),
      kv_(kv_values(shape.dtype, seed)),
      values_(shape.dtype, kv_.seed, kv_.gain) {
  require(model.head_dim_qk <= Values::kMaxRow && model.head_dim_vo <= Values::kMaxRow, "replay: head dim: got {}, wanted at most {}",
          std::max(model.head_dim_qk, model.head_dim_vo), Values::kMaxRow);
  k_page_ = element_ * shape.page_size * model.kv_heads * model.head_dim_qk;
  v_page_ = model.v_in_k ? 0 : element_ * shape.page_size * model.kv_heads * model.head_dim_vo;
  pool_bytes_ = (k_page_ + v_page_) * shape.pages;
  const int64_t bytes = std::max<int64_t>(pool_bytes_ * shape.pools, 1);
  void* const p = mmap(nullptr, size_t(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    fail(ErrorCode::out_of_memory, "replay: KV pool: {} bytes for {} pages x {} pools: {}; give a smaller --kv-pool-tokens", bytes,
         shape.pages, shape.pools, std::strerror(errno));
  }
  madvise(p, size_t(bytes), MADV_HUGEPAGE);  // fewer TLB misses; as good without
  memory_ = static_cast<char*>(p);
}

KvStore::~KvStore() { munmap(memory_, size_t(std::max<int64_t>(pool_bytes_ * shape_.pools, 1))); }

void KvStore::apply(const std::vector<PageEvent>& events) {
  for (int32_t p = 0; p < shape_.pools; ++p) {
    char* const k = pool(p);
    char* const v = k + k_page_ * shape_.pages;
    for (const PageEvent& e : events) {
      if (e.from < 0) {  // all bits set is a NaN in every one of our types
        std::memset(k + k_page_ * e.page, 0xff, size_t(k_page_));
        std::memset(v + v_page_ * e.page, 0xff, size_t(v_page_));
      } else {
        std::memcpy(k + k_page_ * e.page, k + k_page_ * e.from, size_t(k_page_));
        std::memcpy(v + v_page_ * e.page, v + v_page_ * e.from, size_t(v_page_));
      }
    }
  }
}

/// One token's rows of all heads. `base`: K or V of the pool, `dim`: elements of a row.
void KvStore::write_rows(char* base, int32_t dim, int32_t page, int32_t slot, uint64_t hash) {
  const int64_t row = element_ * dim;
  const bool hnd = shape_.layout == KvLayout::hnd;
  const int64_t head_stride = hnd ? row * shape_.page_size : row;
  char* out = base + row * model_.kv_heads * shape_.page_size * page + (hnd ? row : row * model_.kv_heads) * slot;
  for (int32_t h = 0; h < model_.kv_heads; ++h, out += head_stride) std::memcpy(out, values_.row(piece_of(hash, h)), size_t(row));
}

void KvStore::append(const Sequence& sequence, const Slice& slice, const Content& content) {
  for (int64_t pos = slice.kv_len - slice.q_len; pos < slice.kv_len; ++pos) {
    const int32_t page = sequence.pages[size_t(pos / shape_.page_size)];
    const int32_t slot = int32_t(pos % shape_.page_size);
    const uint64_t token = content.token(pos, sequence.sample);
    for (int32_t p = 0; p < shape_.pools; ++p) {
      write_rows(pool(p), model_.head_dim_qk, page, slot, token_hash(token, kv_salt(p), false));
      if (v_page_ > 0) write_rows(pool(p) + k_page_ * shape_.pages, model_.head_dim_vo, page, slot, token_hash(token, kv_salt(p), true));
    }
  }
}

/// `dim` elements of rows that are `row_dim` apart.
Tensor KvStore::view(const char* base, int32_t dim, int32_t row_dim) const {
  const bool hnd = shape_.layout == KvLayout::hnd;
  const int64_t heads = model_.kv_heads, slots = shape_.page_size;
  Tensor t;
  t.data = const_cast<char*>(base);
  t.dtype = shape_.dtype;
  t.ndim = 4;
  const int64_t shape[4] = {shape_.pages, hnd ? heads : slots, hnd ? slots : heads, dim};
  const int64_t stride[4] = {heads * slots * row_dim, (hnd ? slots : heads) * row_dim, row_dim, 1};
  std::copy(shape, shape + 4, t.shape);
  std::copy(stride, stride + 4, t.stride);
  return t;
}

Tensor KvStore::k(int32_t layer) const { return view(pool(layer), model_.head_dim_qk, model_.head_dim_qk); }

Tensor KvStore::v(int32_t layer) const {
  if (model_.v_in_k) return view(pool(layer), model_.head_dim_vo, model_.head_dim_qk);
  return view(pool(layer) + k_page_ * shape_.pages, model_.head_dim_vo, model_.head_dim_vo);
}

ScaleParams KvStore::scale() const { return kv_.scale(); }

}  // namespace kvloom::replay
