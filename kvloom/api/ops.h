// What serving needs around attention: merging states, appending new KV to pages, rotating, and sparse matrices in other forms than page
// lists. On the CPU or a GPU, all checked, nothing written after an error. Safe to call from any thread.
#pragma once

#include "kvloom/api/engine.h"

#include <vector>

namespace kvloom {

/// Where an operation runs. On a GPU every array is in its memory and is read when the stream gets there: what an array holds (offsets,
/// slots, positions, scales) is then not checked, except that no slot outside the cache is written. The call puts one launch into `stream`
/// and returns, allocates nothing, and may be captured.
struct OpOptions {
  Backend backend = Backend::cpu;  // cpu or cuda
  int32_t device = -1;             // cuda: ordinal; -1: that of the calling thread's current context, else 0
  void* stream = nullptr;          // cuda: a CUstream or cudaStream_t; nullptr: the default stream
  bool check_pointers = true;      // cuda: ask the driver, once an address, whether each array is where this GPU can read it
};

/// Compiles (or finds in the cache) and loads the GPU kernels of these operations; else their first call does. Before a capture, where
/// nothing can be loaded.
void load_ops(int32_t device = -1);

/// Returns when everything in `stream` (nullptr: the default one) is done: what callers need whose framework works in no stream that it names.
/// Throws the driver's error of a kernel in it, and of a stream that is being captured.
void wait_for_stream(int32_t device, void* stream);

/// o, lse = merge of states a and b, row by row (attn/state.h has the formula): o_* [rows, heads, dim] f32, f16 or bf16, each of its own
/// type; lse_* fp32 [rows, heads], natural log; any strides with a contiguous dim, each tensor its own. `lse` may be left out.
/// Outputs may be the inputs of one side (in place: the same view), else they share memory with none.
/// (0, -inf) is the identity. A state whose LSE is -inf or +inf (some engines' mark) is empty whatever its O holds, NaN included.
void merge_states(const Tensor& o_a, const Tensor& lse_a, const Tensor& o_b, const Tensor& lse_b, const Tensor& o, const Tensor& lse,
                  const OpOptions& where = {});

/// N-way: o_in [rows, states, heads, dim], lse_in [rows, states, heads]; summed in the order of the states. No states give (0, -inf).
void merge_states_n(const Tensor& o_in, const Tensor& lse_in, const Tensor& o, const Tensor& lse, const OpOptions& where = {});

/// Variable-length: row r merges input rows [indptr[r], indptr[r + 1]) of o_in [total, heads, dim], lse_in [total, heads]; none: (0, -inf).
/// indptr [rows + 1], never falling, within [0, total].
void merge_states_ragged(const Tensor& o_in, const Tensor& lse_in, IndexView indptr, const Tensor& o, const Tensor& lse,
                         const OpOptions& where = {});

/// Where new tokens go: token i of the step is position `pos[i]` of request `request[i]`, in page list `request[i]`. On a GPU `slots` says
/// it instead, and nothing else is read but rope_pos (with RoPE).
struct AppendBatch {
  int64_t num_tokens = 0;
  const int32_t* request = nullptr;   // [num_tokens]; -1: a padding token, skipped
  const int32_t* pos = nullptr;       // [num_tokens] token within the list: entry pos / page_size of it, slot pos % page_size
  const int32_t* rope_pos = nullptr;  // optional [num_tokens]: the position RoPE turns by; default pos
  int32_t num_requests = 0;
  IndexView list_indptr;     // CSR: [num_requests] or [num_requests + 1], as in Batch; not given with a dense table
  IndexView pages;           // page ids, the new tokens' own included
  int64_t table_stride = 0;  // > 0: `pages` is a dense block table, row r at r * table_stride
  const int64_t* slots =
      nullptr;  // [num_tokens] page id * page_size + slot in the page, -1: skipped; in the place of request, pos and pages
};

/// The slots of a batch: on the host, checked as append_kv checks them. `slots` [batch.num_tokens].
void append_slots(const AppendBatch& batch, int32_t page_size, int64_t num_pages, int64_t* slots);

/// Writes k_new [num_tokens, heads, dim_qk], v_new [num_tokens, heads, dim_vo] into the paged tensors k and v (shapes as RunTensors wants
/// them, any strides), converting f32, f16 or bf16 to their dtype; fp8: stored = value / scale, to nearest even, saturating. With rope.mode
/// set, k_new is rotated first, in fp32, by angles formed in double. Tensors that are already of the cache's fp8 type are copied as they
/// are. v_new and v may both be left out (MLA: V lies within K). A token whose page is not there (entry out of its list, id < 0 or >= the
/// number of pages) is refused by number. Tokens of one call go to different slots.
void append_kv(const Tensor& k_new, const Tensor& v_new, const AppendBatch& batch, const Tensor& k, const Tensor& v, KvLayout layout,
               int32_t page_size, const RopeSpec& rope = {}, const ScaleParams& scale = {}, const OpOptions& where = {});

/// Rotates x [tokens, heads, dim] (f32, f16 or bf16) in place, token i at pos[i] (contract/variant.h has the formula). Dims past rotary_dim
/// keep their bits.
void apply_rope(const Tensor& x, const int32_t* pos, const RopeSpec& rope, const OpOptions& where = {});

/// A block-sparse matrix as a batch, and the arrays that `batch` points at: it moves, but is not copied.
/// Block rows are requests; positions are rows and columns of the whole matrix, so that causal and windows mean what they mean there.
/// The engine's spec: storage paged, page_size as said below. K and V: [columns / page_size, page_size, heads, dim], a view of the plain
/// [columns, heads, dim] tensors. Capacity: max_requests = batch.num_requests, max_query_tokens = rows, max_kv_tokens: see kv_tokens.
struct BsrBatch {
  Batch batch;
  int32_t page_size = 1;
  int64_t kv_tokens = 0;  // sum of kv_len: what Capacity::max_kv_tokens must allow
  std::vector<int32_t> qo_indptr, kv_len, q_pos0, pages;
  std::vector<int64_t> list_indptr;

  BsrBatch() = default;
  BsrBatch(BsrBatch&&) = default;
  BsrBatch& operator=(BsrBatch&&) = default;
};

/// Blocks of one size: block row i has rows_per_block query tokens and the block columns indices[indptr[i] .. indptr[i + 1]), each
/// cols_per_block tokens, in any order, none twice. page_size is cols_per_block.
BsrBatch bsr_batch(int32_t num_block_rows, int32_t rows_per_block, int32_t cols_per_block, int32_t num_block_cols, IndexView indptr,
                   IndexView indices);

/// Blocks of any sizes. block_rows[i], block_cols[j]: sizes, 0 allowed; map [block rows, block cols] row-major, nonzero = present.
/// page_size is the greatest common divisor of the column sizes: blocks become lists of equal pages.
/// With num_kv_heads > 0 every KV head has a matrix of its own: block_rows [num_kv_heads, R], block_cols [num_kv_heads, C],
/// map [num_kv_heads, R, C]; sizes may differ from head to head, their sums may not.
BsrBatch variable_bsr_batch(Span<const int32_t> block_rows, Span<const int32_t> block_cols, const uint8_t* map, int32_t num_kv_heads = 0);

/// Packs the bool mask [rows, columns] (row-major, nonzero = keep) of one request: element i is bit i % 8 of byte i / 8. Appends to `bits`
/// from a whole byte and returns the byte offset of its end: what mask_indptr wants.
int64_t pack_mask(const uint8_t* mask, int64_t rows, int64_t columns, std::vector<uint8_t>& bits);

}  // namespace kvloom
