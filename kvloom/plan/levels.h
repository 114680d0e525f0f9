// Composable formats: from a batch to row groups. Flat (one group a request), explicit (the caller's levels), or found automatically
// from equal leading page ids: a tree of any depth, interleaved families, taken where it pays.
#pragma once

#include "kvloom/contract/spec.h"
#include "kvloom/plan/scheduler_config.h"

#include <string>
#include <vector>

namespace kvloom::plan {

/// The row groups of a step. Groups of one level come together, levels ascending; vectors keep their memory between steps.
struct GroupList {
  std::vector<RowGroup> groups;
  std::vector<RowEntry> row_entries;
  int32_t num_levels = 1;
  std::string notes;  // levels found and not taken, and why

  void clear() {
    groups.clear();
    row_entries.clear();
    num_levels = 1;
    notes.clear();
  }
};

/// Looks for shared prefixes in the page tables of `batch` (paged storage, no lists_per_kv_head, linear positions) and, if any pay under
/// config.level_first_gain / level_more_gain / level_reader_gain and fit capacity.max_level_rows, appends the groups of all levels to `out` and returns true.
/// The requests' own remainders are the last level. A shared group covers whole pages only, never a page that holds a request's new tokens,
/// and never keys that some row of it could not see under spec.variant.range unless that row masks them by position.
/// Under a window, page ids before a request's first row's window are not read; requests share if their windows begin in the same page.
/// Returns false and leaves the groups of `out` untouched (notes may be set) when flat is better. `batch` has been validated.
/// Cost: at most 30 us for 256 requests without sharing; with sharing, a read of the shared part of every page table.
///
/// What a group saves is counted in tokens: its pages' tokens x (tile passes over them that its requests make alone, less those that they
/// make together), which is (n - 1) x tokens for n decode requests whose rows fit one tile, and nothing for long prefills.
class PrefixFinder {
 public:
  bool find(const AttentionSpec& spec, const Capacity& capacity, const SchedulerConfig& config, const Batch& batch, GroupList& out);

 private:
  /// A request that may share pages [first_page, last_page) of its list.
  struct Reader {
    int64_t list;  // entry of its page 0 in Batch::pages
    int32_t request;
    int32_t first_page;
    int32_t last_page;
    int32_t tokens;  // q_len
  };
  /// Readers order_[begin, end) have pages [first_page, page_end) in common; [page_begin, page_end) beyond what the parent says.
  struct Node {
    int32_t begin = 0, end = 0;
    int32_t first_page = 0, page_begin = 0, page_end = 0;
    int32_t parent = -1;
    int32_t depth = 0;   // nodes above it
    int32_t tokens = 0;  // query tokens of its readers
    int32_t above = -1;  // nearest taken node above it
    int32_t level = 0;   // taken nodes above it
    bool taken = false;
    int64_t saved_passes = 0;  // by a group of all its readers
    int64_t best = 0;          // its place in best_: see choose()
  };

  void collect(const AttentionSpec& spec, const SchedulerConfig& config, const Batch& batch);
  bool group_by_first_page(const Batch& batch);
  template <class T>
  void grow(const AttentionSpec& spec, const SchedulerConfig& config, const T* pages);
  template <class T>
  int32_t common_end(const T* pages, const Node& node) const;
  template <class T>
  void split(const T* pages, int32_t parent);
  /// SchedulerConfig::level_more_gain and level_reader_gain.
  struct Gains {
    int64_t more, reader;
  };
  void choose(int32_t page_size, Gains gains);
  int64_t value_of_taking(const Node& node, int32_t from_page, bool below, int32_t page_size, const Gains& gains) const;
  void settle();
  bool fit(const AttentionSpec& spec, const Capacity& capacity, const SchedulerConfig& config, int64_t first_gain, std::string& notes);
  void drop(const Capacity& capacity, int64_t max_groups, int32_t page_size, std::string& notes);
  int64_t saved_tokens(const Node& node, int32_t page_size) const;
  void emit(const AttentionSpec& spec, const Batch& batch, GroupList& out);
  RowGroup emit_shared(const Node& node, const AttentionSpec& spec, const Batch& batch, GroupList& out);

  std::vector<Reader> readers_;
  std::vector<int32_t> slots_;      // hash table of families, by first page
  std::vector<int32_t> family_of_;  // [readers]
  std::vector<int32_t> family_;     // [families] first reader
  std::vector<int32_t> order_;      // readers, those of a node together
  std::vector<Node> nodes_;         // parents before children
  std::vector<int64_t> best_;
  std::vector<std::pair<int64_t, int32_t>> keys_;  // what is being sorted or counted, with what it belongs to
  std::vector<int32_t> shared_pages_;              // [requests] pages that shared groups cover
  int64_t own_groups_ = 0;                         // requests with query tokens
};

}  // namespace kvloom::plan
