#include "cli/replay/kv_store.h"

#include "kvloom/support/check.h"

#include <sys/mman.h>
#include <cerrno>
#include <cstring>

namespace kvloom::replay {

KvStore::KvStore(const Model& model, const KvShape& shape, uint64_t seed)
    : model_(model),
      shape_(shape),
      pages_(model, shape),
      element_(size_of(shape.dtype)),
      kv_(kv_values(shape.dtype, seed)),
      values_(shape.dtype, kv_.seed, kv_.gain) {
  require(model.head_dim_qk <= Values::kMaxRow && model.head_dim_vo <= Values::kMaxRow, "replay: head dim: got {}, wanted at most {}",
          std::max(model.head_dim_qk, model.head_dim_vo), Values::kMaxRow);
  const int64_t bytes = mapped_bytes();
  void* const p = mmap(nullptr, size_t(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    fail(ErrorCode::out_of_memory, "replay: KV pool: {} bytes for {} pages x {} pools: {}; give a smaller --kv-pool-tokens", bytes,
         shape.pages, shape.pools, std::strerror(errno));
  }
  madvise(p, size_t(bytes), MADV_HUGEPAGE);  // fewer TLB misses; as good without
  memory_ = static_cast<char*>(p);
}

KvStore::~KvStore() { munmap(memory_, size_t(mapped_bytes())); }

int64_t KvStore::mapped_bytes() const { return std::max<int64_t>(pages_.bytes(), 1); }

void KvStore::apply(const std::vector<PageEvent>& events) {
  const int64_t k_page = pages_.k_page(), v_page = pages_.v_page();
  for (int32_t p = 0; p < shape_.pools; ++p) {
    char* const k = pool(p);
    char* const v = k + pages_.v_begin();
    for (const PageEvent& e : events) {
      if (e.from < 0) {  // all bits set is a NaN in every one of our types
        std::memset(k + k_page * e.page, 0xff, size_t(k_page));
        std::memset(v + v_page * e.page, 0xff, size_t(v_page));
      } else {
        std::memcpy(k + k_page * e.page, k + k_page * e.from, size_t(k_page));
        std::memcpy(v + v_page * e.page, v + v_page * e.from, size_t(v_page));
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
      if (!model_.v_in_k) write_rows(pool(p) + pages_.v_begin(), model_.head_dim_vo, page, slot, token_hash(token, kv_salt(p), true));
    }
  }
}

}  // namespace kvloom::replay
