// What serving needs around attention: merging states, appending new KV to pages, and sparse matrices in other forms than page lists.
#pragma once

#include "kvloom/api/engine.h"

#include <vector>

namespace kvloom {

/// o, lse = merge of states a and b, row by row: o_* [rows, heads, dim] (f32, f16, bf16; any strides), lse_* fp32 [rows, heads], natural
/// log. Outputs may be the inputs of the same side (in place). (0, -inf) is the identity.
void merge_states(const Tensor& o_a, const Tensor& lse_a, const Tensor& o_b, const Tensor& lse_b, const Tensor& o, const Tensor& lse);

/// N-way: o_in [rows, states, heads, dim], lse_in [rows, states, heads]; merged left to right. states may be 0: (0, -inf).
void merge_states_n(const Tensor& o_in, const Tensor& lse_in, const Tensor& o, const Tensor& lse);

/// Variable-length: row r merges input rows [indptr[r], indptr[r + 1]) of o_in [total, heads, dim], lse_in [total, heads].
void merge_states_ragged(const Tensor& o_in, const Tensor& lse_in, IndexView indptr, const Tensor& o, const Tensor& lse);

/// Where new tokens go: token i of the step is position `pos[i]` of request `request[i]`, in page list `request[i]`.
struct AppendBatch {
  int64_t num_tokens = 0;
  const int32_t* request = nullptr;  // [num_tokens]
  const int32_t* pos = nullptr;      // [num_tokens] token within the list: page pages[list_begin(request) + pos / page_size], slot pos % page_size
  const int32_t* rope_pos = nullptr; // optional [num_tokens]: the position RoPE turns by; default pos
  int32_t num_requests = 0;
  IndexView list_indptr;             // as in Batch
  IndexView pages;
  int64_t table_stride = 0;
};

/// Writes k_new [num_tokens, heads, dim_qk], v_new [num_tokens, heads, dim_vo] into the paged tensors k, v (layout), converting to their
/// dtype; fp8: stored = value / scale, saturating. With rope.mode set, k_new is rotated first. Tokens with a page id < 0 are refused.
void append_kv(const Tensor& k_new, const Tensor& v_new, const AppendBatch& batch, const Tensor& k, const Tensor& v, KvLayout layout,
               int32_t page_size, const RopeSpec& rope = {}, const ScaleParams& scale = {});

/// Rotates x [tokens, heads, dim] in place at pos[token].
void apply_rope(const Tensor& x, const int32_t* pos, const RopeSpec& rope);

/// A block-sparse matrix as a batch. Block row i has rows_per_block query tokens (positions i * rows_per_block ..) and the block columns
/// indices[indptr[i] .. indptr[i+1]), each cols_per_block consecutive tokens of ragged K and V. spec: storage paged, page_size
/// cols_per_block; K and V viewed as [num_block_cols, cols_per_block, heads, dim]. The struct owns what `batch` points at.
struct BsrBatch {
  Batch batch;
  std::vector<int32_t> qo_indptr, kv_len, q_pos0;
  std::vector<int64_t> list_indptr, pages;
};
/// block_rows[i], block_cols[j]: sizes; `map` [rows, cols] row-major, nonzero = present. Page size is the greatest common divisor of the
/// column sizes (written to *page_size), so blocks of any sizes become lists of equal pages.
BsrBatch bsr_batch(int32_t num_block_rows, int32_t rows_per_block, int32_t cols_per_block, int32_t num_block_cols, IndexView indptr,
                   IndexView indices);
BsrBatch variable_bsr_batch(Span<const int32_t> block_rows, Span<const int32_t> block_cols, const uint8_t* map, int32_t* page_size);

/// bits[i / 8] |= mask[i] << (i % 8): a row-major bool mask of one request as the packed form; appends to `bits` and returns the byte
/// offset of its end (what mask_indptr wants).
int64_t pack_mask(const uint8_t* mask, int64_t rows, int64_t columns, std::vector<uint8_t>& bits);

}  // namespace kvloom
