#include "cli/check/case.h"

#include "cli/check/random.h"
#include "kvloom/contract/kernel_key.h"
#include "kvloom/support/check.h"

#include <algorithm>
#include <numeric>

namespace kvloom::check {
namespace {

/// "3 x 1..17": how many and from what to what.
std::string range_of(const std::vector<int32_t>& x) {
  if (x.empty()) return "none";
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  return *low == *high ? fmt::format("{} x {}", x.size(), *low) : fmt::format("{} x {}..{}", x.size(), *low, *high);
}

const char* name_of(MaskKind m) {
  switch (m) {
    case MaskKind::none:
      return "none";
    case MaskKind::random:
      return "random";
    case MaskKind::tree:
      return "tree";
    case MaskKind::empty_rows:
      return "empty_rows";
    case MaskKind::corner:
      return "corner";
    case MaskKind::stripes:
      return "stripes";
  }
  return "?";
}

}  // namespace

int64_t Case::total_tokens() const { return std::accumulate(q_len.begin(), q_len.end(), int64_t(0)); }
int64_t Case::total_kv_tokens() const { return std::accumulate(kv_len.begin(), kv_len.end(), int64_t(0)); }

int32_t tree_parent(const Case& c, int32_t r, int32_t t) {
  return int32_t(stream_bits(c.seed, Stream::tree, uint64_t(r) * (uint64_t(1) << 24) + uint64_t(t)) % uint64_t(t + 1)) - 1;
}

std::string describe(const Case& c) {
  const AttentionSpec& s = c.spec;
  std::string text = fmt::format("{}, heads {}/{}, q {}, kv {}", kernel_key("attend", "any", s), s.num_qo_heads, s.num_kv_heads,
                                 range_of(c.q_len), range_of(c.kv_len));
  if (s.storage == Storage::paged) text += fmt::format(", page size {}", s.page_size);
  const KeyRange& r = s.variant.range;
  if (r.left >= 0 || r.right >= 0) text += fmt::format(", window {} left, {} right", r.left, r.right);
  if (c.lists_per_kv_head) text += ", lists per KV head";
  if (c.kv_position == KvPosition::page_table) text += ", positions by page";
  if (c.kv_position == KvPosition::page_id) text += ", block-sparse";
  if (!c.shared.empty()) text += fmt::format(", {} shared prefixes", c.shared.size());
  if (!c.groups.empty()) text += fmt::format(", {} explicit groups", c.groups.size());
  if (c.mask != MaskKind::none) text += fmt::format(", mask {}", name_of(c.mask));
  if (!c.prefix.empty()) text += ", prefix";
  return text;
}

}  // namespace kvloom::check
