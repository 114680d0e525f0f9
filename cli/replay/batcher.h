// Continuous batching: who runs in the next step, and with how many tokens. One rule serves prefill, chunked prefill, decode and recompute:
// a sequence has `known` tokens, of which `computed` have their K and V in pages; a step computes some of the rest, and when none is left
// the model has produced one more. Order of a step: decodes, then prompts begun, then new sequences, first come first served, within the
// token budget. When the pool is full, cached prefixes nobody uses are dropped; then the newest sequence goes back to the queue and its
// tokens are computed again later.
#pragma once

#include "cli/replay/content.h"
#include "cli/replay/page_allocator.h"
#include "cli/replay/radix_tree.h"

#include <deque>

namespace kvloom::replay {

struct BatchOptions {
  int64_t token_budget = 2048;  // query tokens a step
  int32_t max_batch = 256;      // sequences a step
  int32_t page_size = 16;
  int32_t samples = 1;  // continuations of every prompt, on shared pages
  bool prefix_cache = true;
};

/// One continuation of one request.
struct Sequence {
  int32_t request = 0;  // index in the trace
  int32_t sample = 0;
  int64_t prompt = 0;    // tokens
  int64_t output = 0;    // tokens to generate
  int64_t known = 0;     // prompt and generated so far
  int64_t computed = 0;  // first tokens whose K and V are in pages
  std::vector<int32_t> pages;
  RadixTree::Node* pinned = nullptr;
  int64_t reached = 0;   // the most that `computed` has been: what lies before it and is computed again, is computed again
  bool started = false;  // was admitted before

  int64_t pending() const { return known - computed; }
};

/// A sequence's part of a step: tokens [kv_len - q_len, kv_len) are new.
struct Slice {
  int32_t sequence;  // index into Batcher::sequences()
  int32_t q_len;
  int32_t kv_len;
};

/// Something to do with a page before the step writes any K and V, in the order given: copy page `from` over it, or (from == -1) nothing
/// but know that its contents are undefined from here on.
struct PageEvent {
  int32_t from;
  int32_t page;
};

struct Step {
  std::vector<Slice> slices;
  std::vector<PageEvent> page_events;
  int64_t tokens = 0;  // sum of q_len
};

struct Rejected {
  int64_t line;
  int64_t tokens;  // that its pages would have to hold
  int64_t pages;
};

struct BatchCounts {
  int64_t finished = 0;   // sequences
  int64_t preempted = 0;  // times
  int64_t tokens = 0;     // computed, recomputed ones included
  int64_t recomputed = 0;
  int64_t prompt_tokens = 0;  // of sequences at their first admission
  int64_t hit_tokens = 0;     // ... of which never computed: found in pages already there
  int64_t evicted_pages = 0;
  int64_t copied_pages = 0;
};

class Batcher {
 public:
  /// All references must outlive this. `trace` is sorted by arrival.
  Batcher(const BatchOptions& options, const std::vector<TraceRequest>& trace, PageAllocator& pages, RadixTree& cache);

  /// Takes in the requests that arrived by `now_ns`. A request that the pool can't hold even alone is rejected.
  void arrive(int64_t now_ns);
  /// Nothing running and nothing waiting.
  bool idle() const { return running_.empty() && waiting_.empty(); }
  bool done() const { return idle() && next_ == trace_.size(); }
  /// Of the first request not yet taken in; only if there is one (!done() while idle()).
  int64_t next_arrival_ns() const { return trace_[next_].arrival_ns; }

  /// Chooses the next step; !idle(). It has at least one token.
  const Step& schedule();
  /// The step has been computed: advances its sequences, generates their next tokens, finishes those that are complete.
  void commit();

  /// The step chosen last.
  const Step& step() const { return step_; }

  const std::vector<Sequence>& sequences() const { return sequences_; }
  const Content& content(int32_t request) const { return contents_[size_t(request)]; }
  const std::vector<int32_t>& running() const { return running_; }
  const BatchCounts& counts() const { return counts_; }
  const std::vector<Rejected>& rejected() const { return rejected_; }
  /// Requests taken in so far, rejected ones included.
  int64_t arrived() const { return int64_t(next_); }

 private:
  struct Group {  // the continuations of one request: sequences [first, first + samples)
    int32_t first = 0;
    bool siblings_queued = false;
  };

  Sequence& at(int32_t s) { return sequences_[size_t(s)]; }
  int64_t pages_for(int64_t tokens) const { return (tokens + options_.page_size - 1) / options_.page_size; }
  int32_t take_page(int32_t copy_of);
  bool make_room(int32_t s);
  bool admit(int32_t s);
  int32_t fork_source(const Sequence& s) const;
  int64_t attach_prefix(Sequence& s);
  void detach(Sequence& s);
  void preempt_newest();
  void add_slice(int32_t s, int64_t q_len);
  void cache_prompt(Sequence& s);
  void produce(int32_t s);
  void queue_siblings(const Sequence& leader);

  const BatchOptions options_;
  const std::vector<TraceRequest>& trace_;
  PageAllocator& pages_;
  RadixTree& cache_;
  std::vector<Content> contents_;
  std::vector<Group> groups_;  // by request
  std::vector<Sequence> sequences_;
  std::deque<int32_t> waiting_;
  std::vector<int32_t> running_;  // oldest admission first
  size_t next_ = 0;
  Step step_;
  std::vector<uint64_t> keys_;
  BatchCounts counts_;
  std::vector<Rejected> rejected_;
};

}  // namespace kvloom::replay
