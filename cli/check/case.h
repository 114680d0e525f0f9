// A case: one attention step as data. Small enough to print, and everything that a test needs follows from it: tensors, page tables,
// masks (materialise.h). tests/cases/cases.json holds named ones; generate.h draws random ones.
#pragma once

#include "kvloom/api/engine.h"

#include <string>
#include <vector>

namespace kvloom::check {

/// How K and V lie in memory.
enum class Placement : int32_t {
  separate = 0,    // two tensors
  kv_in_page = 1,  // one buffer: a page's K block, then its V block
  kv_in_row = 2,   // one buffer: a token's K row of a head, then its V row
  mla = 3,         // V is the first head_dim_vo elements of K
  padded = 4,      // two tensors with gaps between tokens, heads and pages
};

enum class QView : int32_t { dense = 0, fused_qkv = 1, head_major = 2 };                       // fused: q = qkv[:, :heads]
enum class OView : int32_t { dense = 0, every_other = 1, head_major = 2 };                     // every_other: out = big[:, ::2]
enum class MaskKind : int32_t { none = 0, random = 1, tree = 2, empty_rows = 3, corner = 4, stripes = 5 };  // tests/cases/README.md says what each is

/// Requests whose page lists begin with the same `pages` pages.
struct SharedPrefix {
  int32_t pages = 0;
  std::vector<int32_t> requests;
};

/// One row group of an explicit level. Its list is request `list`'s page list (ragged: tokens) from entry `list_skip` on.
struct CaseGroup {
  int32_t level = 0;
  int32_t list = 0;
  int32_t list_skip = 0;  // entries
  int32_t kv_begin = 0, kv_end = 0, kv_pos0 = 0, kv_index0 = 0, kv_head = -1;
  std::vector<int32_t> tokens;
};

struct Case {
  std::string kernel;  // GPU: this family, where another would be chosen; "": the fastest
  std::string name;
  uint64_t seed = 1;  // of every value
  AttentionSpec spec;
  std::vector<int32_t> q_len;   // [requests]
  std::vector<int32_t> kv_len;  // [requests], or [requests * num_kv_heads] with lists_per_kv_head

  // Storage.
  bool dense_table = false;  // else CSR
  bool index64 = false;
  bool shuffle_pages = true;
  bool lists_per_kv_head = false;
  bool batch_keeps_pages = false;  // run() takes the page ids from the batch
  KvPosition kv_position = KvPosition::linear;
  int32_t rolling_sinks =
      -1;                     // page_table: pages at the front that keep their place, then a jump; -1: a gap of 0..2 pages before each page
  int32_t rolling_jump = 0;   // tokens
  int32_t block_columns = 0;  // page_id: pages are block columns 0 .. block_columns-1, each request takes an increasing choice of them
  KvLayout layout = KvLayout::nhd;
  Placement placement = Placement::separate;
  int32_t pad = 3;  // Placement::padded: elements after every token, head and page; GPU kernels copy 16 bytes at a time
  QView q_view = QView::dense;
  OView o_view = OView::dense;
  bool lse_head_major = false;
  bool want_lse = true;
  bool bare_state = false;

  // Rows.
  std::vector<int32_t> q_pos0;  // [requests], or empty
  std::vector<int32_t> q_pos;   // [query tokens], or empty
  std::vector<int32_t> prefix;  // [requests], or empty
  MaskKind mask = MaskKind::none;
  int32_t mask_percent = 70;  // MaskKind::random: chance of a set bit
  std::vector<SharedPrefix> shared;
  std::vector<CaseGroup> groups;

  // Values.
  float q_gain = 1.0f;  // multiplies Q: how peaked the softmax is
  float q_scale = 1.0f, k_scale = 1.0f, v_scale = 1.0f;
  bool scale_per_head = false;  // k and v scales times 1 .. 2 by head
  float alibi_gain = 1.0f;      // slopes are 1/64 .. 1/2 times this
  int32_t capacity_slack = 0;   // requests, and 16 times as many tokens, that the engine is made larger than the step

  int32_t num_requests() const { return int32_t(q_len.size()); }
  int64_t total_tokens() const;
  int64_t total_kv_tokens() const;
  int32_t page_size() const { return spec.storage == Storage::ragged ? 1 : spec.page_size; }
};

/// The draft token that token `t` of request `r` hangs on in MaskKind::tree: 0 .. t-1, or -1 for the context.
int32_t tree_parent(const Case& c, int32_t r, int32_t t);

/// One line for people: shape, types, storage, variant.
std::string describe(const Case& c);

}  // namespace kvloom::check
