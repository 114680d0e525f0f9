#include "cli/replay/batcher.h"

#include "kvloom/support/check.h"

#include <algorithm>

namespace kvloom::replay {

Batcher::Batcher(const BatchOptions& options, const std::vector<TraceRequest>& trace, PageAllocator& pages, RadixTree& cache)
    : options_(options), trace_(trace), pages_(pages), cache_(cache) {
  require(options.token_budget >= 1, "replay: token budget: got {}, wanted 1 or more", options.token_budget);
  require(options.max_batch >= 1 && options.max_batch <= 65536, "replay: max batch: got {}, wanted 1 to 65536", options.max_batch);
  require(options.page_size >= 1, "replay: page size: got {}, wanted 1 or more", options.page_size);
  require(options.samples >= 1 && options.samples <= 1024, "replay: samples: got {}, wanted 1 to 1024", options.samples);
  contents_.reserve(trace.size());
  groups_.resize(trace.size());
}

void Batcher::arrive(int64_t now_ns) {
  for (; next_ < trace_.size() && trace_[next_].arrival_ns <= now_ns; ++next_) {
    const TraceRequest& r = trace_[next_];
    contents_.emplace_back(r, int64_t(next_));
    groups_[next_].first = int32_t(sequences_.size());
    const int64_t held = r.prompt_tokens + std::max<int64_t>(r.output_tokens - 1, 0);  // the last token produced is never computed
    if (pages_for(held) > pages_.total_pages()) {
      rejected_.push_back({r.line, held, pages_for(held)});
      continue;
    }
    for (int32_t sample = 0; sample < options_.samples; ++sample) {
      Sequence s;
      s.request = int32_t(next_);
      s.sample = sample;
      s.prompt = s.known = r.prompt_tokens;
      s.output = r.output_tokens;
      sequences_.push_back(std::move(s));
    }
    waiting_.push_back(groups_[next_].first);
  }
}

/// A page from the free list, or one that the cache can spare; -1 if there is neither. `copy_of`: a page to copy over it, or -1.
int32_t Batcher::take_page(int32_t copy_of) {
  int32_t page = pages_.allocate();
  if (page < 0) {
    const int64_t freed = cache_.evict(1);
    counts_.evicted_pages += freed;
    if (freed > 0) page = pages_.allocate();
  }
  if (page >= 0) step_.page_events.push_back({copy_of, page});
  return page;
}

/// Gives sequence `s` a page of its own for its next token (a new one, or a copy of one that others hold too), at the newest sequences'
/// expense if need be. False: it was the newest itself.
bool Batcher::make_room(int32_t s) {
  while (true) {
    Sequence& sequence = at(s);
    const size_t index = size_t(sequence.computed / options_.page_size);
    const bool shared = index < sequence.pages.size() && pages_.owners(sequence.pages[index]) > 1;
    if (index < sequence.pages.size() && !shared) return true;
    const int32_t page = take_page(shared ? sequence.pages[index] : -1);
    if (page >= 0 && shared) {
      ++counts_.copied_pages;
      pages_.release(sequence.pages[index]);
      sequence.pages[index] = page;
      return true;
    }
    if (page >= 0) {
      sequence.pages.push_back(page);
      return true;
    }
    const bool itself = running_.back() == s;
    preempt_newest();
    if (itself) return false;
  }
}

/// Lets go of everything that `s` holds.
void Batcher::detach(Sequence& s) {
  cache_.unpin(s.pinned);
  s.pinned = nullptr;
  for (const int32_t page : s.pages) pages_.release(page);
  s.pages.clear();
  s.computed = 0;
}

void Batcher::preempt_newest() {
  const int32_t victim = running_.back();
  running_.pop_back();
  const auto slice = std::find_if(step_.slices.begin(), step_.slices.end(), [&](const Slice& x) { return x.sequence == victim; });
  if (slice != step_.slices.end()) {
    step_.tokens -= slice->q_len;
    step_.slices.erase(slice);
  }
  detach(at(victim));
  waiting_.push_front(victim);
  ++counts_.preempted;
}

/// A running continuation of the same request that has computed the whole prompt; -1 if there is none.
int32_t Batcher::fork_source(const Sequence& s) const {
  const int32_t first = groups_[size_t(s.request)].first;
  for (int32_t i = first; i < first + options_.samples; ++i) {
    const Sequence& other = sequences_[size_t(i)];
    if (other.computed >= s.prompt) return i;
  }
  return -1;
}

/// Gives `s` the pages of the longest prefix there is, pinned; returns its tokens. The prompt's last token is always computed: its output
/// is what the first new token comes from. A fork needs nothing computed but what follows the prompt.
int64_t Batcher::attach_prefix(Sequence& s) {
  const int32_t source = options_.samples > 1 && s.known > s.prompt ? fork_source(s) : -1;
  if (source >= 0) {
    const Sequence& other = at(source);
    s.pages.assign(other.pages.begin(), other.pages.begin() + pages_for(s.prompt));
    s.pinned = other.pinned;
    s.computed = s.prompt;
  } else if (options_.prefix_cache && content(s.request).shareable()) {
    keys_.clear();
    for (int64_t page = 0; (page + 1) * options_.page_size < s.prompt; ++page) {
      keys_.push_back(content(s.request).page_key(page, options_.page_size));
    }
    s.pinned = cache_.match({keys_.data(), int64_t(keys_.size())}, s.pages);
    s.computed = int64_t(s.pages.size()) * options_.page_size;
  }
  for (const int32_t page : s.pages) pages_.retain(page);
  cache_.pin(s.pinned);
  return s.computed;
}

/// Brings `s` from the queue into the batch with pages for all of its known tokens; false (and nothing changed) if they are not there.
/// A hundredth of the pool stays free for the growth of those that run.
bool Batcher::admit(int32_t s) {
  Sequence& sequence = at(s);
  const int64_t hit = attach_prefix(sequence);
  const int64_t missing = pages_for(sequence.known) - int64_t(sequence.pages.size());
  const int64_t reserve = running_.empty() ? 0 : pages_.total_pages() / 100;
  if (missing + reserve > pages_.free_pages() + cache_.evictable_pages()) {
    detach(sequence);
    return false;
  }
  for (int64_t i = 0; i < missing; ++i) sequence.pages.push_back(take_page(-1));
  running_.push_back(s);
  if (!sequence.started) counts_.prompt_tokens += sequence.prompt;
  sequence.started = true;
  counts_.hit_tokens += std::max<int64_t>(hit - sequence.reached, 0);
  sequence.reached = std::max(sequence.reached, hit);
  return true;
}

void Batcher::add_slice(int32_t s, int64_t q_len) {
  step_.slices.push_back({s, int32_t(q_len), int32_t(at(s).computed + q_len)});
  step_.tokens += q_len;
}

const Step& Batcher::schedule() {
  step_ = Step{};
  const int64_t preempted_before = counts_.preempted;
  for (size_t i = 0; i < running_.size() && step_.tokens < options_.token_budget; ++i) {
    const int32_t s = running_[i];
    if (at(s).pending() == 1 && make_room(s)) add_slice(s, 1);
  }
  for (size_t i = 0; i < running_.size() && step_.tokens < options_.token_budget; ++i) {
    const int32_t s = running_[i];
    const int64_t pending = at(s).pending();
    if (pending > 1 && make_room(s)) add_slice(s, std::min(pending, options_.token_budget - step_.tokens));
  }
  while (!waiting_.empty() && step_.tokens < options_.token_budget && int64_t(running_.size()) < options_.max_batch &&
         counts_.preempted == preempted_before) {
    const int32_t s = waiting_.front();
    if (!admit(s)) break;
    waiting_.pop_front();
    if (!make_room(s)) break;  // a fork whose next token falls into a page that others hold too
    add_slice(s, std::min(at(s).pending(), options_.token_budget - step_.tokens));
  }
  if (step_.slices.empty()) fail(ErrorCode::internal, "replay: schedule: got a step without work, wanted one token or more");
  return step_;
}

/// Makes the full prompt pages computed so far findable.
void Batcher::cache_prompt(Sequence& s) {
  if (!options_.prefix_cache || !content(s.request).shareable()) return;
  const int64_t full = std::min(s.computed, s.prompt) / options_.page_size;
  if (full == 0) return;
  keys_.clear();
  for (int64_t page = 0; page < full; ++page) keys_.push_back(content(s.request).page_key(page, options_.page_size));
  RadixTree::Node* const node = cache_.insert({keys_.data(), full}, {s.pages.data(), full});
  cache_.pin(node);
  cache_.unpin(s.pinned);
  s.pinned = node;
}

/// The prompt is computed: its other continuations may start on its pages. They queue before all others.
void Batcher::queue_siblings(const Sequence& leader) {
  Group& group = groups_[size_t(leader.request)];
  if (options_.samples == 1 || group.siblings_queued) return;
  group.siblings_queued = true;
  for (int32_t i = group.first + options_.samples - 1; i > group.first; --i) {
    Sequence& sibling = at(i);
    if (sibling.output <= 1) {  // its only token came with the prompt's last
      counts_.prompt_tokens += sibling.prompt;
      counts_.hit_tokens += sibling.prompt;
      ++counts_.finished;
    } else {
      sibling.known = sibling.prompt + 1;
      waiting_.push_front(i);
    }
  }
}

/// All known tokens of `s` are computed: the model has produced the next one, or `s` is finished.
void Batcher::produce(int32_t s) {
  Sequence& sequence = at(s);
  const int64_t produced = sequence.known - sequence.prompt + 1;
  if (produced < sequence.output) {
    ++sequence.known;
    return;
  }
  detach(sequence);
  ++counts_.finished;
  running_.erase(std::find(running_.begin(), running_.end(), s));
}

void Batcher::commit() {
  for (const Slice& slice : step_.slices) {
    Sequence& sequence = at(slice.sequence);
    const bool was_prompt = sequence.computed < sequence.prompt;
    counts_.tokens += slice.q_len;
    counts_.recomputed += std::max<int64_t>(std::min<int64_t>(slice.kv_len, sequence.reached) - sequence.computed, 0);
    sequence.computed = slice.kv_len;
    sequence.reached = std::max(sequence.reached, sequence.computed);
    if (was_prompt) cache_prompt(sequence);
    if (was_prompt && sequence.computed >= sequence.prompt) queue_siblings(sequence);
    if (sequence.pending() == 0) produce(slice.sequence);
  }
}

}  // namespace kvloom::replay
