#include "cli/replay/radix_tree.h"

#include "kvloom/support/check.h"

#include <algorithm>

namespace kvloom::replay {

/// A run of pages. Children begin with different keys. The node object stands for the end of its run: when the run is cut, the new upper
/// part is a new node, so whoever pinned this one still pins all of its path.
struct RadixTree::Node {
  std::vector<uint64_t> keys;
  std::vector<int32_t> pages;
  std::map<uint64_t, std::unique_ptr<Node>> children;
  Node* parent = nullptr;
  int32_t pins = 0;        // of this node and of everything below it
  uint64_t last_used = 0;  // a child's is never later than its parent's
  uint64_t id = 0;
};

bool RadixTree::LeastRecent::operator()(const Node* a, const Node* b) const {
  return a->last_used != b->last_used ? a->last_used < b->last_used : a->id < b->id;
}

RadixTree::RadixTree(PageAllocator& pages) : pages_(pages), root_(std::make_unique<Node>()) {}

// Branches as long as a trace's longest conversation would overflow the stack if unique_ptr freed them recursively.
RadixTree::~RadixTree() {
  std::vector<std::unique_ptr<Node>> pending;
  pending.push_back(std::move(root_));
  while (!pending.empty()) {
    const std::unique_ptr<Node> node = std::move(pending.back());
    pending.pop_back();
    for (auto& child : node->children) pending.push_back(std::move(child.second));
  }
}

bool RadixTree::is_evictable_leaf(const Node* node) const { return node != root_.get() && node->children.empty() && node->pins == 0; }

/// Cuts the run of `node` before page `at` (0 < at < size) and returns the new upper part.
RadixTree::Node* RadixTree::split(Node* node, size_t at) {
  auto upper = std::make_unique<Node>();
  upper->keys.assign(node->keys.begin(), node->keys.begin() + int64_t(at));
  upper->pages.assign(node->pages.begin(), node->pages.begin() + int64_t(at));
  upper->parent = node->parent;
  upper->pins = node->pins;
  upper->last_used = node->last_used;
  upper->id = ++next_id_;
  std::unique_ptr<Node>& slot = node->parent->children.at(node->keys[0]);
  std::unique_ptr<Node> lower = std::move(slot);
  lower->keys.erase(lower->keys.begin(), lower->keys.begin() + int64_t(at));
  lower->pages.erase(lower->pages.begin(), lower->pages.begin() + int64_t(at));
  lower->parent = upper.get();
  Node* const result = upper.get();
  upper->children.emplace(lower->keys[0], std::move(lower));
  slot = std::move(upper);
  return result;
}

/// Follows `keys` as far as they are cached, cutting the last run where they part, and marks the path as used now.
RadixTree::Node* RadixTree::walk(Span<const uint64_t> keys, std::vector<int32_t>* out, int64_t& matched) {
  ++clock_;
  Node* node = root_.get();
  matched = 0;
  while (matched < keys.size) {
    const auto it = node->children.find(keys[matched]);
    if (it == node->children.end()) break;
    Node* next = it->second.get();
    const int64_t limit = std::min(int64_t(next->keys.size()), keys.size - matched);
    int64_t same = 1;
    while (same < limit && next->keys[size_t(same)] == keys[matched + same]) ++same;
    if (same < int64_t(next->keys.size())) next = split(next, size_t(same));
    if (out) out->insert(out->end(), next->pages.begin(), next->pages.end());
    matched += same;
    touch(next);
    node = next;
  }
  return node;
}

void RadixTree::touch(Node* node) {
  const bool listed = leaves_.erase(node) > 0;
  node->last_used = clock_;
  if (listed) leaves_.insert(node);
}

RadixTree::Node* RadixTree::match(Span<const uint64_t> keys, std::vector<int32_t>& out) {
  int64_t matched = 0;
  return walk(keys, &out, matched);
}

RadixTree::Node* RadixTree::insert(Span<const uint64_t> keys, Span<int32_t> pages) {
  std::vector<int32_t> there;
  int64_t matched = 0;
  Node* const node = walk(keys, &there, matched);
  for (int64_t i = 0; i < matched; ++i) {
    const int32_t cached = there[size_t(i)];
    if (cached == pages[i]) continue;
    pages_.retain(cached);
    pages_.release(pages[i]);
    pages[i] = cached;
  }
  if (matched == keys.size) return node;
  auto leaf = std::make_unique<Node>();
  leaf->keys.assign(keys.begin() + matched, keys.end());
  leaf->pages.assign(pages.begin() + matched, pages.end());
  for (const int32_t page : leaf->pages) pages_.retain(page);
  leaf->parent = node;
  leaf->last_used = clock_;
  leaf->id = ++next_id_;
  cached_ += int64_t(leaf->pages.size());
  evictable_ += int64_t(leaf->pages.size());
  leaves_.erase(node);
  leaves_.insert(leaf.get());
  Node* const result = leaf.get();
  node->children.emplace(leaf->keys[0], std::move(leaf));
  return result;
}

void RadixTree::add_pins(Node* node, int32_t by) {
  for (; node && node != root_.get(); node = node->parent) {
    const int32_t before = node->pins;
    node->pins += by;
    if (before == 0) evictable_ -= int64_t(node->pages.size());
    if (node->pins == 0) evictable_ += int64_t(node->pages.size());
    if (node->pins < 0) fail(ErrorCode::internal, "prefix cache: pins: got {}, wanted 0 or more", node->pins);
    if (before == 0) leaves_.erase(node);
    if (is_evictable_leaf(node)) leaves_.insert(node);
  }
}

void RadixTree::pin(Node* node) { add_pins(node, 1); }
void RadixTree::unpin(Node* node) { add_pins(node, -1); }

int64_t RadixTree::evict(int64_t wanted) {
  int64_t freed = 0;
  while (freed < wanted && !leaves_.empty()) {
    Node* const leaf = *leaves_.begin();
    while (freed < wanted && !leaf->pages.empty()) {  // from the end: what stays is still a prefix
      pages_.release(leaf->pages.back());
      leaf->pages.pop_back();
      if (!leaf->pages.empty()) leaf->keys.pop_back();
      ++freed, --cached_, --evictable_;
    }
    if (!leaf->pages.empty()) break;
    leaves_.erase(leaf);
    Node* const parent = leaf->parent;
    const uint64_t key = leaf->keys[0];  // a copy: erase destroys the leaf
    parent->children.erase(key);
    if (is_evictable_leaf(parent)) leaves_.insert(parent);
  }
  return freed;
}

std::string RadixTree::check() const {
  int64_t cached = 0, evictable = 0;
  size_t leaves = 0;
  std::vector<const Node*> pending{root_.get()};
  while (!pending.empty()) {
    const Node* node = pending.back();
    pending.pop_back();
    if (node != root_.get()) {
      if (node->keys.empty() || node->keys.size() != node->pages.size()) return "a node without pages, or with as many keys as not";
      cached += int64_t(node->pages.size());
      if (node->pins == 0) evictable += int64_t(node->pages.size());
      if (is_evictable_leaf(node) && (++leaves, !leaves_.count(const_cast<Node*>(node)))) return "an unpinned leaf is not listed";
      for (const int32_t page : node->pages) {
        if (pages_.owners(page) < 1) return "a cached page is free";
      }
    }
    int32_t child_pins = 0;
    for (const auto& [key, child] : node->children) {
      if (child->parent != node || child->keys.empty() || child->keys[0] != key) return "a child under the wrong key or parent";
      if (node != root_.get() && child->last_used > node->last_used) return "a child used after its parent";
      child_pins += child->pins;
      pending.push_back(child.get());
    }
    if (node != root_.get() && node->pins < child_pins) return "fewer pins than the children have";
  }
  if (cached != cached_) return "cached pages: the count is wrong";
  if (evictable != evictable_) return "evictable pages: the count is wrong";
  return leaves == leaves_.size() ? "" : "a listed leaf is none";
}

}  // namespace kvloom::replay
