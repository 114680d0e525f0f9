// The prefix cache against the plainest thing that could do its job: a map from every cached prefix to its page.
#include "cli/replay/radix_tree.h"

#include "cli/replay/random.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>

namespace kvloom::replay {
namespace {

using Keys = std::vector<uint64_t>;

Span<const uint64_t> view(const Keys& keys) { return {keys.data(), int64_t(keys.size())}; }

/// One entry a cached page, under the whole prefix that ends with it.
class NaiveCache {
 public:
  struct Entry {
    int32_t page;
    uint64_t last_used;
    int pins = 0;
  };

  std::vector<int32_t> match(const Keys& keys) {
    ++clock_;
    std::vector<int32_t> out;
    for (size_t n = 1; n <= keys.size(); ++n) {
      const auto it = entries_.find(Keys(keys.begin(), keys.begin() + int64_t(n)));
      if (it == entries_.end()) break;
      it->second.last_used = clock_;
      out.push_back(it->second.page);
    }
    return out;
  }

  void insert(const Keys& keys, const std::vector<int32_t>& pages) {
    match(keys);
    for (size_t n = 1; n <= keys.size(); ++n)
      entries_.try_emplace(Keys(keys.begin(), keys.begin() + int64_t(n)), Entry{pages[n - 1], clock_});
  }

  void pin(const Keys& keys, int by) {
    for (size_t n = 1; n <= keys.size(); ++n) entries_.at(Keys(keys.begin(), keys.begin() + int64_t(n))).pins += by;
  }

  /// The page that must go next: unpinned, nothing cached beyond it, least recently used.
  std::optional<int32_t> evict() {
    auto best = entries_.end();
    for (auto it = entries_.begin(); it != entries_.end(); ++it) {
      const auto after = std::next(it);  // keys are sorted: an extension comes right behind
      const bool extended = after != entries_.end() && after->first.size() > it->first.size() &&
                            std::equal(it->first.begin(), it->first.end(), after->first.begin());
      if (extended || it->second.pins > 0) continue;
      if (best == entries_.end() || it->second.last_used < best->second.last_used) best = it;
    }
    if (best == entries_.end()) return std::nullopt;
    const int32_t page = best->second.page;
    entries_.erase(best);
    return page;
  }

  size_t size() const { return entries_.size(); }
  int64_t evictable() const {
    int64_t n = 0;
    for (const auto& e : entries_) n += e.second.pins == 0;
    return n;
  }

 private:
  std::map<Keys, Entry> entries_;
  uint64_t clock_ = 0;
};

Keys random_keys(Random& random) {
  Keys keys(size_t(1 + random.below(9)));
  for (uint64_t& k : keys) k = uint64_t(random.below(3));  // few values: many shared and parting prefixes
  return keys;
}

struct Pinned {
  Keys keys;
  RadixTree::Node* node;
  std::vector<int32_t> pages;  // owned by the sequence
};

class RadixTreeProperty : public testing::TestWithParam<int> {};

TEST_P(RadixTreeProperty, DoesWhatAMapOfPrefixesDoes) {
  Random random(static_cast<uint64_t>(GetParam()));
  PageAllocator pages(64);
  RadixTree tree(pages);
  NaiveCache naive;
  std::vector<Pinned> pinned;
  for (int round = 0; round < 1500; ++round) {
    const int64_t what = random.below(4);
    if (what == 0 && !pinned.empty()) {  // a sequence ends
      const size_t i = size_t(random.below(int64_t(pinned.size())));
      tree.unpin(pinned[i].node);
      naive.pin(pinned[i].keys, -1);
      for (const int32_t page : pinned[i].pages) pages.release(page);
      pinned.erase(pinned.begin() + int64_t(i));
    } else if (what == 1) {
      const Keys keys = random_keys(random);
      std::vector<int32_t> got;
      tree.match(view(keys), got);
      ASSERT_EQ(got, naive.match(keys));
    } else if (what == 2) {
      const std::optional<int32_t> expected = naive.evict();
      const int64_t free_before = pages.free_pages();
      ASSERT_EQ(tree.evict(1), expected ? 1 : 0);
      ASSERT_EQ(pages.free_pages(), free_before + (expected ? 1 : 0));
      if (expected) {
        ASSERT_EQ(pages.owners(*expected), 0);
      }
    } else {  // a sequence computes its prompt on pages of its own, and caches it
      const Keys keys = random_keys(random);
      if (pages.free_pages() < int64_t(keys.size())) continue;
      Pinned p{keys, nullptr, {}};
      for (size_t i = 0; i < keys.size(); ++i) p.pages.push_back(pages.allocate());
      naive.insert(keys, p.pages);
      p.node = tree.insert(view(keys), {p.pages.data(), int64_t(p.pages.size())});
      tree.pin(p.node);
      naive.pin(keys, 1);
      ASSERT_EQ(p.pages, naive.match(keys));
      std::vector<int32_t> again;
      tree.match(view(keys), again);
      ASSERT_EQ(p.pages, again);
      pinned.push_back(p);
    }
    ASSERT_EQ(tree.check(), "") << "round " << round;
    ASSERT_EQ(tree.cached_pages(), int64_t(naive.size()));
    ASSERT_EQ(tree.evictable_pages(), naive.evictable());
  }
  for (const Pinned& p : pinned) {
    tree.unpin(p.node);
    for (const int32_t page : p.pages) pages.release(page);
  }
  tree.evict(1000);
  EXPECT_EQ(pages.free_pages(), 64);
  EXPECT_EQ(tree.cached_pages(), 0);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RadixTreeProperty, testing::Range(1, 9));

TEST(RadixTree, PinnedPathsAreNeverEvicted) {
  PageAllocator pages(8);
  RadixTree tree(pages);
  std::vector<int32_t> owned;
  for (int i = 0; i < 4; ++i) owned.push_back(pages.allocate());
  const Keys keys{1, 2, 3, 4};
  RadixTree::Node* const node = tree.insert(view(keys), {owned.data(), 4});
  tree.pin(node);
  std::vector<int32_t> half;
  tree.match({keys.data(), 2}, half);  // cuts the run; the pin holds both parts
  EXPECT_EQ(tree.evict(8), 0);
  tree.unpin(node);
  for (const int32_t page : owned) pages.release(page);
  EXPECT_EQ(pages.free_pages(), 4);
  EXPECT_EQ(tree.evict(8), 4);
  EXPECT_EQ(pages.free_pages(), 8);
}

TEST(PageAllocator, RefusesToFreeTwice) {
  PageAllocator pages(2);
  const int32_t page = pages.allocate();
  pages.retain(page);
  pages.release(page);
  pages.release(page);
  EXPECT_THROW(pages.release(page), std::exception);
  EXPECT_EQ(pages.allocate(), page);
  EXPECT_NE(pages.allocate(), page);
  EXPECT_EQ(pages.allocate(), -1);
}

}  // namespace
}  // namespace kvloom::replay
