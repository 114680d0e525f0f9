// Integers that plan reads: int32 or int64 arrays in place where they are contiguous, copies of lists and of strided arrays.
#pragma once

#include "python/src/tensor_arg.h"

#include <vector>

namespace kvloom::python {

class IndexArg {
 public:
  /// None: not given. Arrays of any rank are taken as their elements in row-major order. `place`: where the array must be; `anywhere`: or
  /// elsewhere, unread.
  void take(nb::handle object, const char* name, Place place = {}, bool anywhere = false);

  bool given() const { return given_; }
  int64_t size() const { return size_; }
  int32_t ndim() const { return ndim_; }
  int64_t shape(int32_t d) const { return shape_[d]; }
  /// Elements from a row of a table to the next.
  int64_t row_stride() const { return row_stride_; }
  const char* name() const { return name_; }
  int64_t operator[](int64_t i) const;

  kvloom_indices c() const;
  /// As int32, exactly `size` of them; nullptr where not given. Raises ValueError for numbers that don't fit and for other sizes; `label`
  /// says what the size is.
  const int32_t* as_int32(int64_t size, const char* label);
  const int64_t* as_int64(int64_t size, const char* label);
  /// The same of an array that stays where it is, maybe on a GPU: TypeError for int64.
  const int32_t* int32_in_place(int64_t size, const char* label) const;
  /// As int32, all elements in row-major order.
  const int32_t* flat_int32();
  /// A table whose rows are farther apart than they are long becomes a copy without gaps; on the host.
  void close_gaps();
  /// ValueError for a table with gaps, where it is no table that is wanted.
  void refuse_gaps() const;
  /// Nothing but numbers: makes this hold `values`.
  void hold(std::vector<int32_t> values, const char* name);
  /// Keeps what is read alive beyond the call that took it.
  nb::object owner() const { return owner_; }
  bool streamless() const { return streamless_; }

 private:
  void require_size(int64_t size, const char* label) const;
  void copy(const TensorArg& t);
  void hold_64(std::vector<int64_t> values);
  /// A list of lists of one length: a table.
  void hold_lists(const nb::object& rows);

  bool given_ = false, streamless_ = false;
  const char* name_ = "";
  const void* data_ = nullptr;
  int32_t bits_ = 64;
  int64_t size_ = 0, row_stride_ = 0;
  int32_t ndim_ = 1;
  int64_t shape_[TensorArg::kMaxDims] = {};
  std::vector<int64_t> wide_;
  std::vector<int32_t> narrow_;
  nb::object owner_;
};

}  // namespace kvloom::python
