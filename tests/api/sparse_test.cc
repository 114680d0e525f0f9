// Block-sparse matrices as batches, and packed masks: the lists say exactly what the map says.
#include "kvloom/api/ops.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>

namespace kvloom::test {
namespace {

/// The dense 0/1 matrix [rows][cols] that a batch of lists stands for, for one KV head.
std::vector<std::vector<int>> dense_of(const BsrBatch& b, int64_t cols, int32_t head, int32_t num_heads) {
  std::vector<std::vector<int>> m(size_t(b.batch.qo_indptr[b.batch.num_requests]), std::vector<int>(size_t(cols), 0));
  for (int32_t r = 0; r < b.batch.num_requests; ++r) {
    const int64_t list = int64_t(r) * num_heads + head, tokens = b.batch.kv_len[list], first = b.batch.list_indptr[list];
    EXPECT_EQ(tokens % b.page_size, 0);
    EXPECT_EQ(b.batch.list_indptr[list + 1] - first, tokens / b.page_size);
    EXPECT_EQ(b.batch.q_pos0[r], b.batch.qo_indptr[r]);
    for (int64_t i = b.batch.qo_indptr[r]; i < b.batch.qo_indptr[r + 1]; ++i) {
      for (int64_t t = 0; t < tokens; ++t) ++m[size_t(i)][size_t(b.batch.pages[first + t / b.page_size] * b.page_size + t % b.page_size)];
    }
  }
  return m;
}

std::vector<std::vector<int>> dense_of(const std::vector<int32_t>& rows, const std::vector<int32_t>& cols, const uint8_t* map) {
  std::vector<std::vector<int>> m;
  for (size_t i = 0; i < rows.size(); ++i) {
    std::vector<int> line;
    for (size_t j = 0; j < cols.size(); ++j) line.insert(line.end(), size_t(cols[j]), map[i * cols.size() + j] != 0);
    m.insert(m.end(), size_t(rows[i]), line);
  }
  return m;
}

Span<const int32_t> span(const std::vector<int32_t>& v) { return {v.data(), int64_t(v.size())}; }

TEST(Bsr, BlocksOfOneSize) {
  const int32_t indptr[] = {0, 2, 2, 5}, indices[] = {3, 0, 2, 1, 3};
  const BsrBatch b = bsr_batch(3, 2, 4, 4, IndexView(indptr, 4), IndexView(indices, 5));
  EXPECT_EQ(b.page_size, 4);
  EXPECT_EQ(b.kv_tokens, 20);
  EXPECT_EQ(b.batch.kv_position, KvPosition::page_id);
  const uint8_t map[] = {1, 0, 0, 1, 0, 0, 0, 0, 0, 1, 1, 1};
  EXPECT_EQ(dense_of(b, 16, 0, 1), dense_of({2, 2, 2}, {4, 4, 4, 4}, map));
}

TEST(Bsr, B35_BlocksOfEverySize) {
  const std::vector<int32_t> rows{1, 2, 3}, cols{3, 1, 2};
  const uint8_t map[] = {0, 0, 1, 1, 0, 1, 0, 1, 1};
  const BsrBatch b = variable_bsr_batch(span(rows), span(cols), map);
  EXPECT_EQ(b.page_size, 1);
  EXPECT_EQ(b.batch.num_requests, 3);
  EXPECT_EQ(dense_of(b, 6, 0, 1), dense_of(rows, cols, map));
  const uint8_t empty_row[] = {1, 1, 1, 0, 0, 0, 1, 0, 0};
  EXPECT_EQ(dense_of(variable_bsr_batch(span(rows), span(cols), empty_row), 6, 0, 1), dense_of(rows, cols, empty_row));
}

TEST(Bsr, PageSizeIsTheGreatestCommonDivisor) {
  const std::vector<int32_t> rows{5, 0, 7}, cols{64, 0, 96, 32};
  const uint8_t map[] = {1, 1, 0, 1, 1, 1, 1, 1, 0, 1, 1, 0};
  const BsrBatch b = variable_bsr_batch(span(rows), span(cols), map);
  EXPECT_EQ(b.page_size, 32);
  EXPECT_EQ(dense_of(b, 192, 0, 1), dense_of(rows, cols, map));
  EXPECT_EQ(b.batch.num_requests, 2);  // a block row without rows is none
}

TEST(Bsr, AMatrixOfItsOwnForEveryKvHead) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 50; ++trial) {
    const int32_t heads = 3, R = 4, C = 5;
    std::vector<int32_t> rows, cols;
    std::vector<uint8_t> map;
    for (int32_t h = 0; h < heads; ++h) {  // random sizes of equal sums
      const auto sizes = [&](int32_t n, int32_t sum, int32_t unit, std::vector<int32_t>& out) {
        std::multiset<int32_t> cuts{0, sum};
        for (int32_t i = 1; i < n; ++i) cuts.insert(int32_t(random() % uint32_t(sum + 1)));
        for (auto it = cuts.begin(); std::next(it) != cuts.end(); ++it) out.push_back((*std::next(it) - *it) * unit);
      };
      sizes(R, 20, 1, rows);
      sizes(C, 10, 4, cols);
      for (int32_t i = 0; i < R * C; ++i) map.push_back(uint8_t(random() % 2));
    }
    const BsrBatch b = variable_bsr_batch(span(rows), span(cols), map.data(), heads);
    EXPECT_TRUE(b.batch.lists_per_kv_head);
    EXPECT_EQ(b.page_size % 4, 0);
    for (int32_t h = 0; h < heads; ++h) {
      const std::vector<int32_t> r(rows.begin() + h * R, rows.begin() + (h + 1) * R), c(cols.begin() + h * C, cols.begin() + (h + 1) * C);
      ASSERT_EQ(dense_of(b, 40, h, heads), dense_of(r, c, map.data() + h * R * C));
    }
  }
}

TEST(Bsr, EmptyMatricesAreValid) {
  const int32_t zero[] = {0};
  EXPECT_EQ(bsr_batch(0, 4, 4, 0, IndexView(zero, 1), {}).batch.num_requests, 0);
  EXPECT_EQ(variable_bsr_batch({}, {}, nullptr).batch.num_requests, 0);
}

TEST(Bsr, MovesButKeepsItsArrays) {
  const std::vector<int32_t> rows{1, 2, 3}, cols{3, 1, 2};
  const uint8_t map[] = {0, 0, 1, 1, 0, 1, 0, 1, 1};
  BsrBatch a = variable_bsr_batch(span(rows), span(cols), map);
  const BsrBatch b = std::move(a);
  EXPECT_EQ(b.batch.pages.data, b.pages.data());
  EXPECT_EQ(dense_of(b, 6, 0, 1), dense_of(rows, cols, map));
}

TEST(PackMask, LittleBitOrderFromWholeBytes) {
  std::mt19937 random(2);
  std::vector<uint8_t> bits;
  std::vector<int64_t> indptr{0};
  std::vector<std::vector<uint8_t>> masks;
  const std::pair<int64_t, int64_t> shapes[] = {{3, 5}, {0, 7}, {1, 8}, {10, 20}, {1, 1}};
  for (const auto& [rows, columns] : shapes) {
    std::vector<uint8_t> mask(size_t(rows * columns));
    for (uint8_t& m : mask) m = random() % 3 == 0 ? uint8_t(random()) : 0;
    indptr.push_back(pack_mask(mask.data(), rows, columns, bits));
    masks.push_back(mask);
  }
  EXPECT_EQ(indptr, (std::vector<int64_t>{0, 2, 2, 3, 28, 29}));
  for (size_t r = 0; r < masks.size(); ++r) {
    for (size_t i = 0; i < masks[r].size(); ++i) ASSERT_EQ((bits[size_t(indptr[r]) + i / 8] >> (i % 8)) & 1, masks[r][i] != 0);
  }
}

}  // namespace
}  // namespace kvloom::test
