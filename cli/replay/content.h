// What stands in a request's tokens, as numbers: equal prefixes have equal numbers, and nothing else has. K and V of a token depend on its
// whole prefix in a real model, so a block's number is chained over all blocks before it.
#pragma once

#include "cli/replay/random.h"
#include "cli/replay/trace.h"

namespace kvloom::replay {

class Content {
 public:
  /// `request`: its index in the trace, for what it shares with nobody.
  Content(const TraceRequest& trace, int64_t request)
      : block_tokens_(trace.block_tokens), prompt_(trace.prompt_tokens), own_(mix(0x6f776e, uint64_t(request))) {
    uint64_t link = 0x626c6f636b;
    for (const uint64_t id : trace.blocks) chain_.push_back(link = mix(link, id));
  }

  /// True if the prompt can be shared at all.
  bool shareable() const { return !chain_.empty(); }

  /// The token at `pos` of continuation `sample` (continuations differ past the prompt only).
  uint64_t token(int64_t pos, int32_t sample) const {
    if (pos >= prompt_) return mix(mix(own_, uint64_t(sample) + 1), uint64_t(pos));
    return mix(shareable() ? chain_[size_t(pos / block_tokens_)] : own_, uint64_t(pos));
  }

  /// Prompt page `page` as a key of the prefix cache. The page must be full: (page + 1) * page_size <= prompt tokens.
  uint64_t page_key(int64_t page, int32_t page_size) const { return token((page + 1) * page_size - 1, 0); }

 private:
  std::vector<uint64_t> chain_;
  int32_t block_tokens_;
  int64_t prompt_;
  uint64_t own_;
};

}  // namespace kvloom::replay
