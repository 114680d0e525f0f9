#include "python/src/block_sparse.h"

#include "python/src/errors.h"

namespace kvloom::python {

BlockSparse::BlockSparse(int32_t num_block_rows, int32_t rows_per_block, int32_t cols_per_block, int32_t num_block_cols, nb::handle indptr,
                         nb::handle indices) {
  IndexArg begins, columns;
  begins.take(indptr, "indptr");
  columns.take(indices, "indices");
  check(kvloom_bsr_create(num_block_rows, rows_per_block, cols_per_block, num_block_cols, begins.c(), columns.c(), &bsr_));
  describe();
}

BlockSparse::BlockSparse(nb::handle block_rows, nb::handle block_cols, nb::handle map) {
  IndexArg rows, cols;
  rows.take(block_rows, "block_rows");
  cols.take(block_cols, "block_cols");
  TensorArg m;
  m.take(map, "map");
  if (!m.given() || !(m.is_type(dlpack::kBool, 8) || m.is_type(dlpack::kUint, 8)) || !m.on_host() || !m.contiguous()) {
    raise_value_error("`map`: expected a contiguous bool or uint8 array on cpu, got " + (m.given() ? m.describe() : "None"));
  }
  const int32_t heads = m.ndim() == 3 ? int32_t(m.shape(0)) : 0;
  const int64_t leading = heads > 0 ? heads : 1;
  const bool fits = (m.ndim() == 2 || heads > 0) && rows.given() && cols.given() && rows.size() == leading * m.shape(m.ndim() - 2) &&
                    cols.size() == leading * m.shape(m.ndim() - 1) && rows.ndim() == m.ndim() - 1 && cols.ndim() == m.ndim() - 1;
  if (!fits) {
    raise_value_error(
        "`map`: expected [block rows, block columns] beside `block_rows` and `block_cols` of those lengths, or all three with a "
        "leading dimension of KV heads, got " +
        m.describe() + " beside " + std::to_string(rows.size()) + " and " + std::to_string(cols.size()) + " sizes");
  }
  const int32_t* const r = rows.flat_int32();
  const int32_t* const c = cols.flat_int32();
  check(
      kvloom_variable_bsr_create(r, rows.size() / leading, c, cols.size() / leading, static_cast<const uint8_t*>(m.data()), heads, &bsr_));
  describe();
}

const BlockSparse& BlockSparse::of(nb::handle matrix) {
  const BlockSparse* m = nullptr;
  if (!nb::try_cast<const BlockSparse*>(matrix, m) || m == nullptr) {
    raise_type_error("`matrix`: expected a kvloom.BlockSparse, got " + class_name(matrix));
  }
  return *m;
}

void BlockSparse::describe() {
  kvloom_batch_init(&batch_, sizeof batch_);
  check(kvloom_bsr_batch(bsr_, &batch_, &page_size_, &kv_tokens_));
}

int64_t BlockSparse::num_rows() const { return static_cast<const int32_t*>(batch_.qo_indptr.data)[batch_.num_requests]; }

nb::bytes BlockSparse::page_ids() const { return nb::bytes(batch_.pages.data, size_t(batch_.pages.size) * 4); }

void bind_block_sparse(nb::module_& m) {
  nb::class_<BlockSparse>(m, "BlockSparse")
      .def(nb::init<int32_t, int32_t, int32_t, int32_t, nb::handle, nb::handle>())
      .def(nb::init<nb::handle, nb::handle, nb::handle>())
      .def("page_ids", &BlockSparse::page_ids)
      .def_prop_ro("page_size", &BlockSparse::page_size)
      .def_prop_ro("kv_tokens", &BlockSparse::kv_tokens)
      .def_prop_ro("num_requests", &BlockSparse::num_requests)
      .def_prop_ro("num_rows", &BlockSparse::num_rows);
}

}  // namespace kvloom::python
