// Refusals of tensors: rank, shape, type, strides, alignment, null pointers and overlaps. O(1) a tensor.
// Messages: "where: tensor: field: got X, wanted Y; remedy".
#pragma once

#include "kvloom/api/engine.h"

namespace kvloom::api {

inline constexpr int64_t kAny = -1;  // a wanted dimension of any length

inline constexpr int32_t kDlCpu = 1, kDlCuda = 2, kDlPinned = 3, kDlManaged = 13;  // DLPack's device types, as in Tensor::device_type

/// What a tensor should be.
struct Wanted {
  const char* where;  // "run"
  const char* name;   // "q"
  const char* dims;   // "[tokens, num_qo_heads, head_dim_qk]"
  DType dtype;
  int32_t ndim;
  int64_t shape[4];             // kAny: any length
  const char* remedy = "";      // ends the message about the shape: "; ..."
  bool any_strides = false;     // LSE: no dimension is read as a vector
  const char* dtype_from = "";  // ends the message about the dtype: who wants it
};

/// Rank, shape, dtype, last dimension contiguous, data there and aligned, all offsets within 62 bits. Throws invalid_argument.
void check_tensor(const Tensor& t, const Wanted& wanted);

/// Throws unless no two elements of `t` share memory.
void check_writable(const Tensor& t, const char* where, const char* name);

/// Throws if `a`, which is written, shares memory with `b`. Views that interleave in one buffer (columns of a fused QKV matrix, K beside V)
/// are told apart where their strides agree from the longest down. Both have passed check_tensor.
void check_disjoint(const Tensor& a, const char* a_name, const Tensor& b, const char* b_name, const char* where);

/// The stride of dimension d, 0 where there is nothing to step to: such strides are whatever the caller's library left there.
inline int64_t stride_of(const Tensor& t, int32_t d) { return t.shape[d] > 1 ? t.stride[d] : 0; }

/// The stride of the dimension of tokens, which holds for runs of more tokens, too: a graph that was captured with one is replayed with others. Of one token
/// the stride given counts if tokens can lie so far apart, around the heads or within each, and begin at multiples of `align` bytes; else they lie as densely as
/// they can where heads do, and 0 where heads lie apart: then nothing says where another token is. `heads`: their dimension.
int64_t token_stride_of(const Tensor& t, int32_t d, int32_t heads, int64_t align);

/// "[4, 8, 128]".
std::string shape_text(const Tensor& t);

}  // namespace kvloom::api
