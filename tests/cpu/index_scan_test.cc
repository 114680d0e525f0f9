// The scan of page ids against a plain loop: every target, both widths, every length around its vectors.
#include "kvloom/cpu/index_scan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace kvloom::cpu {
namespace {

template <class T>
void expect_plain(IndexScanner scan, const std::vector<T>& ids, size_t offset = 0) {
  std::vector<T> moved(offset, std::numeric_limits<T>::max());  // as a row of a table lies: what is in front of it counts for nothing, nor what is behind
  moved.insert(moved.end(), ids.begin(), ids.end());
  moved.push_back(std::numeric_limits<T>::max());
  const auto n = int64_t(ids.size());
  const IndexRange whole = {int64_t(offset), int64_t(offset) + n};
  IndexScan got;
  scan(moved.data(), sizeof(T) == 8, &whole, 1, got);
  if (got.first >= 0) got.first -= int64_t(offset);
  const T high = ids.empty() ? T(-1) : *std::max_element(ids.begin(), ids.end());
  EXPECT_EQ(got.high, std::max<int64_t>(high, -1)) << ids.size();
  EXPECT_EQ(got.first, high < 0 ? -1 : std::find(ids.begin(), ids.end(), high) - ids.begin()) << ids.size();
  EXPECT_EQ(got.negative, std::any_of(ids.begin(), ids.end(), [](T x) { return x < 0; })) << ids.size();
}

template <class T>
void try_all(Target target, T largest) {
  const IndexScanner scan = index_scanner(target);
  std::mt19937_64 random(7);
  std::uniform_int_distribution<T> any(0, largest);
  for (size_t n = 0; n < 2500; n += n < 150 ? 1 : 97) {  // blocks are of 512 or 1024 ids
    std::vector<T> ids(n);
    for (T& id : ids) id = any(random);
    expect_plain(scan, ids);
    if (n == 0) continue;
    for (size_t offset = 1; offset < 20; offset += 3) expect_plain(scan, ids, offset);
    ids[random() % n] = largest;
    expect_plain(scan, ids);
    ids[random() % n] = -1;
    expect_plain(scan, ids);
    std::fill(ids.begin(), ids.end(), std::numeric_limits<T>::min());
    expect_plain(scan, ids);
  }
}

TEST(IndexScan, IsThePlainLoop) {
  for (const Target t : {Target::portable, Target::avx2, Target::avx512}) {
    if (!is_available(t)) continue;
    SCOPED_TRACE(name_of(t));
    try_all<int32_t>(t, 1000);
    try_all<int32_t>(t, INT32_MAX);
    try_all<int64_t>(t, 1000);
    try_all<int64_t>(t, INT64_MAX);
  }
}

/// Rows of a table, in any order, of any length, read by some calls one after the other: the largest of all and its first place in that order.
template <class T>
void try_ranges(Target target) {
  const IndexScanner scan = index_scanner(target);
  std::mt19937 random(11);
  const auto below = [&](int64_t n) { return int64_t(random() % uint64_t(n)); };
  for (int turn = 0; turn < 300; ++turn) {
    std::vector<T> ids(4000);
    for (T& id : ids) id = T(below(turn % 3 == 0 ? 5 : 1000000) - (turn % 5 == 0 ? 3 : 0));  // many alike; some below 0
    std::vector<IndexRange> ranges(size_t(1 + below(40)));
    for (IndexRange& r : ranges) {
      r.begin = below(3000);
      r.end = r.begin + below(turn % 2 == 0 ? 20 : 1000);
    }
    IndexScan got, wanted;
    const auto first_call = int(below(int64_t(ranges.size()) + 1));
    scan(ids.data(), sizeof(T) == 8, ranges.data(), first_call, got);
    scan(ids.data(), sizeof(T) == 8, ranges.data() + first_call, int(ranges.size()) - first_call, got);
    for (const IndexRange& r : ranges) {
      for (int64_t i = r.begin; i < r.end; ++i) {
        wanted.negative |= ids[size_t(i)] < 0;
        if (int64_t(ids[size_t(i)]) <= wanted.high) continue;
        wanted.high = ids[size_t(i)];
        wanted.first = i;
      }
    }
    EXPECT_EQ(got.high, wanted.high) << turn;
    EXPECT_EQ(got.first, wanted.first) << turn;
    EXPECT_EQ(got.negative, wanted.negative) << turn;
  }
}

TEST(IndexScan, GoesOnOverRanges) {
  for (const Target t : {Target::portable, Target::avx2, Target::avx512}) {
    if (!is_available(t)) continue;
    SCOPED_TRACE(name_of(t));
    try_ranges<int32_t>(t);
    try_ranges<int64_t>(t);
  }
}

}  // namespace
}  // namespace kvloom::cpu
