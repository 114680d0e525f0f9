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
  const IndexScan got = scan(moved.data() + offset, sizeof(T) == 8, int64_t(ids.size()));
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

}  // namespace
}  // namespace kvloom::cpu
