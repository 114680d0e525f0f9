// Block-sparse matrices as batches.
#pragma once

#include "python/src/index_arg.h"

namespace kvloom::python {

class BlockSparse {
 public:
  /// Blocks of one size.
  BlockSparse(int32_t num_block_rows, int32_t rows_per_block, int32_t cols_per_block, int32_t num_block_cols, nb::handle indptr,
              nb::handle indices);
  /// Blocks of any sizes: block_rows [R], block_cols [C], map [R, C]; all with a leading dimension of heads, or none.
  BlockSparse(nb::handle block_rows, nb::handle block_cols, nb::handle map);
  BlockSparse(const BlockSparse&) = delete;
  ~BlockSparse() { kvloom_bsr_destroy(bsr_); }

  /// Raises TypeError for what is none.
  static const BlockSparse& of(nb::handle matrix);
  const kvloom_batch& batch() const { return batch_; }
  int32_t page_size() const { return page_size_; }
  int64_t kv_tokens() const { return kv_tokens_; }
  int32_t num_requests() const { return batch_.num_requests; }
  int64_t num_rows() const;
  /// int32
  nb::bytes page_ids() const;

 private:
  void describe();

  kvloom_bsr* bsr_ = nullptr;
  kvloom_batch batch_;
  int32_t page_size_ = 0;
  int64_t kv_tokens_ = 0;
};

void bind_block_sparse(nb::module_& m);

}  // namespace kvloom::python
