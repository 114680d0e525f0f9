// One step's lengths and lists, from Python arrays to a kvloom_batch.
#pragma once

#include "python/src/index_arg.h"

#include <vector>

namespace kvloom::python {

/// The arguments of Engine.plan(), as they came.
struct BatchHandles {
  nb::handle qo_indptr, kv_len, pages, list_indptr, block_table, q_pos0, q_pos, prefix, groups;
  bool lists_per_kv_head;
  nb::handle kv_position;
};

/// KVLOOM_POSITION_ of 'linear', 'page_table', 'page_id'.
int32_t position_of(nb::handle word);
/// Requests of as many lists as kv_len has entries.
int32_t num_requests_of(const IndexArg& kv_len, bool lists_per_kv_head, int32_t num_kv_heads);
/// Entries from a row of a block table to the next; 0: it is no table. Refuses a table of other rows than lists, one beside page lists, a
/// list_indptr of another size, and keys of which nothing says where they are.
int64_t table_stride_of(const IndexArg& pages, const IndexArg& list_indptr, int64_t lists, bool table, bool has_pages, bool has_groups);

class BatchArg {
 public:
  BatchArg() = default;
  BatchArg(const BatchArg&) = delete;

  /// Sizes that the C interface can't know are checked here: those of arrays given by pointer, and of tables.
  /// `ids_unread`: the page ids may lie on a GPU.
  void take(const BatchHandles& handles, int32_t num_kv_heads, bool ids_unread);
  /// A block-sparse matrix's batch, whose arrays belong to `owner`.
  void take(const kvloom_batch& batch, nb::handle owner);

  const kvloom_batch* c() const { return &batch_; }
  int64_t total_tokens() const { return total_tokens_; }
  int32_t num_requests() const { return batch_.num_requests; }
  int64_t num_page_ids() const { return batch_.pages.size; }
  /// Who owns the arrays of a block-sparse matrix; else nothing.
  nb::object owner() const { return owner_; }
  /// The page ids, which run may read after the call that took them.
  IndexArg take_pages() { return std::move(pages_); }

 private:
  void take_lists(const BatchHandles& handles, int32_t num_kv_heads, bool ids_unread);
  void take_groups(nb::handle groups);

  kvloom_batch batch_;
  int64_t total_tokens_ = 0;
  IndexArg qo_indptr_, kv_len_, pages_, list_indptr_, q_pos0_, q_pos_, prefix_;
  std::vector<IndexArg> group_tokens_;
  std::vector<kvloom_level_group> groups_;
  nb::object owner_;
};

}  // namespace kvloom::python
