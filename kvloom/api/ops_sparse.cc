#include "kvloom/api/ops.h"
#include "kvloom/base/math.h"
#include "kvloom/support/check.h"

#include <algorithm>
#include <numeric>

namespace kvloom {
namespace {

constexpr int64_t kMaxTokens = (int64_t(1) << 31) - 1;

/// Points `b.batch` at the arrays of `b`.
void finish(BsrBatch& b, int32_t num_requests, bool per_head) {
  b.batch.num_requests = num_requests;
  b.batch.qo_indptr = IndexView(b.qo_indptr.data(), int64_t(b.qo_indptr.size()));
  b.batch.kv_len = IndexView(b.kv_len.data(), int64_t(b.kv_len.size()));
  b.batch.list_indptr = IndexView(b.list_indptr.data(), int64_t(b.list_indptr.size()));
  b.batch.pages = IndexView(b.pages.data(), int64_t(b.pages.size()));
  b.batch.lists_per_kv_head = per_head;
  b.batch.kv_position = KvPosition::page_id;
  b.batch.q_pos0 = b.q_pos0.data();
  b.kv_tokens = std::accumulate(b.kv_len.begin(), b.kv_len.end(), int64_t(0));
}

/// [0, sizes[0], sizes[0] + sizes[1], ...]
std::vector<int32_t> offsets_of(Span<const int32_t> sizes, const char* name) {
  std::vector<int32_t> offsets{0};
  int64_t end = 0;
  for (int64_t i = 0; i < sizes.size; ++i) {
    require(sizes[i] >= 0, "variable_bsr_batch: {}[{}]: got {}, wanted at least 0", name, i, sizes[i]);
    end += sizes[i];
    require(end <= kMaxTokens, "variable_bsr_batch: {}: got a sum above {}, wanted fewer tokens", name, kMaxTokens);
    offsets.push_back(int32_t(end));
  }
  return offsets;
}

/// The offsets of each of `parts` equal slices of `sizes`, all with the same end.
std::vector<std::vector<int32_t>> offsets_by_head(Span<const int32_t> sizes, int64_t parts, const char* name) {
  require(sizes.size % parts == 0, "variable_bsr_batch: {}: got {} entries, wanted a multiple of {} KV heads", name, sizes.size, parts);
  const int64_t n = sizes.size / parts;
  std::vector<std::vector<int32_t>> offsets;
  for (int64_t h = 0; h < parts; ++h) {
    offsets.push_back(offsets_of({sizes.data + h * n, n}, name));
    require(offsets[size_t(h)].back() == offsets[0].back(), "variable_bsr_batch: {}: KV head {}: got a sum of {}, wanted {} as head 0",
            name, h, offsets[size_t(h)].back(), offsets[0].back());
  }
  return offsets;
}

/// Every place where some head's block row begins or ends: between two of them, all heads have one block row each.
std::vector<int32_t> common_rows(const std::vector<std::vector<int32_t>>& rows) {
  std::vector<int32_t> all;
  for (const auto& offsets : rows) all.insert(all.end(), offsets.begin(), offsets.end());
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

/// Appends the pages of the present block columns of one block row; returns their tokens.
int32_t append_list(BsrBatch& b, const std::vector<int32_t>& cols, const uint8_t* present) {
  int32_t tokens = 0;
  for (size_t j = 0; j + 1 < cols.size(); ++j) {
    if (!present[j]) continue;
    for (int32_t page = cols[j] / b.page_size; page < cols[j + 1] / b.page_size; ++page) b.pages.push_back(page);
    tokens += cols[j + 1] - cols[j];
  }
  return tokens;
}

}  // namespace

BsrBatch bsr_batch(int32_t num_block_rows, int32_t rows_per_block, int32_t cols_per_block, int32_t num_block_cols, IndexView indptr,
                   IndexView indices) {
  require(num_block_rows >= 0 && num_block_cols >= 0, "bsr_batch: block rows and columns: got {} x {}, wanted at least 0", num_block_rows,
          num_block_cols);
  require(rows_per_block >= 1 && cols_per_block >= 1, "bsr_batch: block: got {} x {}, wanted at least 1 x 1", rows_per_block,
          cols_per_block);
  require(int64_t(num_block_rows) * rows_per_block <= kMaxTokens && int64_t(num_block_cols) * cols_per_block <= kMaxTokens,
          "bsr_batch: matrix: got {} x {} blocks of {} x {}, wanted at most {} rows and columns", num_block_rows, num_block_cols,
          rows_per_block, cols_per_block, kMaxTokens);
  require(indptr.given() && indptr.size == int64_t(num_block_rows) + 1, "bsr_batch: indptr: got {} entries, wanted {}", indptr.size,
          int64_t(num_block_rows) + 1);
  require(indices.given() || indices.size == 0, "bsr_batch: indices: got a null pointer, wanted {} block columns", indices.size);
  BsrBatch b;
  b.page_size = cols_per_block;
  std::vector<int32_t> seen(size_t(num_block_cols), -1);  // the last block row that listed a column
  for (int32_t r = 0; r <= num_block_rows; ++r) {
    b.qo_indptr.push_back(r * rows_per_block);
    b.list_indptr.push_back(int64_t(b.pages.size()));
    if (r == num_block_rows) break;
    const int64_t begin = indptr[r], end = indptr[r + 1];
    require(begin >= 0 && end >= begin && end <= indices.size, "bsr_batch: indptr[{}]: got [{}, {}), wanted a range within the {} indices",
            r, begin, end, indices.size);
    for (int64_t i = begin; i < end; ++i) {
      require(indices[i] >= 0 && indices[i] < num_block_cols, "bsr_batch: indices[{}]: got {}, wanted 0 .. {}", i, indices[i],
              num_block_cols - 1);
      require(seen[size_t(indices[i])] != r, "bsr_batch: indices[{}]: got block column {} a second time in block row {}, wanted it once", i,
              indices[i], r);
      seen[size_t(indices[i])] = r;
      b.pages.push_back(int32_t(indices[i]));
    }
    b.kv_len.push_back(int32_t((end - begin) * cols_per_block));
    b.q_pos0.push_back(r * rows_per_block);
  }
  finish(b, num_block_rows, false);
  return b;
}

BsrBatch variable_bsr_batch(Span<const int32_t> block_rows, Span<const int32_t> block_cols, const uint8_t* map, int32_t num_kv_heads) {
  require(num_kv_heads >= 0, "variable_bsr_batch: num_kv_heads: got {}, wanted at least 1, or 0 for one matrix for all", num_kv_heads);
  require(map != nullptr || block_rows.size == 0 || block_cols.size == 0, "variable_bsr_batch: map: got a null pointer, wanted an array");
  const int64_t heads = max_of(num_kv_heads, 1);
  const std::vector<std::vector<int32_t>> rows = offsets_by_head(block_rows, heads, "block_rows");
  const std::vector<std::vector<int32_t>> cols = offsets_by_head(block_cols, heads, "block_cols");
  const int64_t row_blocks = block_rows.size / heads, col_blocks = block_cols.size / heads;
  BsrBatch b;
  b.page_size = 0;
  for (const int32_t size : block_cols) b.page_size = std::gcd(b.page_size, size);
  b.page_size = max_of(b.page_size, 1);
  b.qo_indptr = common_rows(rows);
  std::vector<int64_t> row(static_cast<size_t>(heads), 0);  // each head's current block row
  const auto num_requests = int32_t(b.qo_indptr.size()) - 1;
  b.list_indptr.push_back(0);
  for (int32_t r = 0; r < num_requests; ++r) {
    const int32_t begin = b.qo_indptr[size_t(r)];
    for (int64_t h = 0; h < heads; ++h) {
      int64_t& i = row[size_t(h)];
      while (rows[size_t(h)][size_t(i + 1)] <= begin) ++i;
      b.kv_len.push_back(append_list(b, cols[size_t(h)], map + (h * row_blocks + i) * col_blocks));
      b.list_indptr.push_back(int64_t(b.pages.size()));
    }
    b.q_pos0.push_back(begin);
  }
  finish(b, num_requests, num_kv_heads > 0);
  return b;
}

int64_t pack_mask(const uint8_t* mask, int64_t rows, int64_t columns, std::vector<uint8_t>& bits) {
  require(rows >= 0 && columns >= 0, "pack_mask: shape: got [{}, {}], wanted no negative dimension", rows, columns);
  require(columns == 0 || rows <= (int64_t(1) << 62) / columns, "pack_mask: shape: got [{}, {}], wanted fewer elements", rows, columns);
  const int64_t n = rows * columns;
  require(mask != nullptr || n == 0, "pack_mask: mask: got a null pointer, wanted [{}, {}] bytes", rows, columns);
  const size_t begin = bits.size();
  bits.resize(begin + size_t(ceil_div<int64_t>(n, 8)), 0);
  for (int64_t i = 0; i < n; ++i) bits[begin + size_t(i >> 3)] |= uint8_t((mask[i] != 0) << (i & 7));
  return int64_t(bits.size());
}

}  // namespace kvloom
