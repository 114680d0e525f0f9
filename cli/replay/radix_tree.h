// The prefix cache: which pages hold which prompt prefixes. A radix tree whose edges are runs of full pages, one key a page. Sequences pin
// the path they use; what nobody pins can be evicted, least recently used first, from the ends of the branches.
#pragma once

#include "cli/replay/page_allocator.h"
#include "kvloom/base/span.h"

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace kvloom::replay {

class RadixTree {
 public:
  struct Node;

  /// The tree owns every page it holds once (PageAllocator::retain).
  explicit RadixTree(PageAllocator& pages);
  ~RadixTree();
  RadixTree(const RadixTree&) = delete;
  RadixTree& operator=(const RadixTree&) = delete;

  /// Appends the pages of the longest cached prefix of `keys` to `out` and returns the node where it ends (the root: nothing matched).
  Node* match(Span<const uint64_t> keys, std::vector<int32_t>& out);

  /// Makes keys[i] -> pages[i] cached. Where a prefix is there already, `pages` gets the cached pages instead: its own owners move over to
  /// them. Returns the node where `keys` end.
  Node* insert(Span<const uint64_t> keys, Span<int32_t> pages);

  /// Keeps the path from the root to `node` from being evicted; once an unpin each. The root and nullptr are allowed and mean nothing.
  void pin(Node* node);
  void unpin(Node* node);

  /// Frees at least one page, `wanted` if that many can be; returns how many.
  int64_t evict(int64_t wanted);

  int64_t cached_pages() const { return cached_; }
  int64_t evictable_pages() const { return evictable_; }
  /// "" or the first rule found broken: for tests.
  std::string check() const;

 private:
  struct LeastRecent {
    bool operator()(const Node* a, const Node* b) const;
  };

  Node* walk(Span<const uint64_t> keys, std::vector<int32_t>* out, int64_t& matched);
  Node* split(Node* node, size_t at);
  void touch(Node* node);
  void add_pins(Node* node, int32_t by);
  bool is_evictable_leaf(const Node* node) const;

  PageAllocator& pages_;
  std::unique_ptr<Node> root_;
  std::set<Node*, LeastRecent> leaves_;  // unpinned ends of branches
  uint64_t clock_ = 0;
  uint64_t next_id_ = 0;
  int64_t cached_ = 0;
  int64_t evictable_ = 0;
};

}  // namespace kvloom::replay
