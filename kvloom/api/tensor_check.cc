#include "kvloom/api/tensor_check.h"

#include "kvloom/api/spec_check.h"
#include "kvloom/base/math.h"
#include "kvloom/support/check.h"

#include <algorithm>
#include <cstdlib>

namespace kvloom {

Tensor Tensor::dense(const void* data, DType dtype, std::initializer_list<int64_t> shape) {
  require(shape.size() <= 4, "Tensor::dense: shape: got {} dimensions, wanted at most 4", shape.size());
  Tensor t;
  t.data = const_cast<void*>(data);
  t.dtype = dtype;
  t.ndim = int32_t(shape.size());
  std::copy(shape.begin(), shape.end(), t.shape);
  int64_t stride = 1;
  for (int32_t d = t.ndim - 1; d >= 0; --d) {
    t.stride[d] = stride;
    stride = int64_t(uint64_t(stride) * uint64_t(max_of<int64_t>(t.shape[d], 1)));  // senseless sizes are refused where the tensor is used
  }
  return t;
}

namespace api {
namespace {

std::string numbers_text(const int64_t* x, int32_t n, bool wanted = false) {
  std::string text = "[";
  for (int32_t i = 0; i < n; ++i) {
    if (i > 0) text += ", ";
    text += wanted && x[i] == kAny ? std::string("any") : std::to_string(x[i]);
  }
  return text + "]";
}

bool has_elements(const Tensor& t) {
  for (int32_t d = 0; d < t.ndim; ++d) {
    if (t.shape[d] <= 0) return false;
  }
  return true;
}

/// Distance between neighbours along dimension d, whatever the direction. INT64_MIN, which has no opposite, is taken for its neighbour.
int64_t pitch_of(const Tensor& t, int32_t d) { return std::abs(max_of(stride_of(t, d), -INT64_MAX)); }

/// Byte offsets [low, high) from data that the elements of a non-empty tensor cover.
struct Extent {
  __int128 low, high;
};
Extent extent_of(const Tensor& t) {
  Extent e{0, 0};
  for (int32_t d = 0; d < t.ndim; ++d) {
    const __int128 reach = __int128(t.shape[d] - 1) * stride_of(t, d);
    (reach < 0 ? e.low : e.high) += reach;
  }
  const int32_t size = size_of(t.dtype);
  return {e.low * size, (e.high + 1) * size};
}

}  // namespace

int64_t token_stride_of(const Tensor& t, int32_t d, int32_t heads, int64_t align) {
  if (t.shape[d] > 1) return t.stride[d];
  constexpr int64_t kFarthest = int64_t(1) << 36;  // elements; what is further is no distance, but what the caller's library left there
  const bool inside = heads > d;                   // heads of a token lie within it, or tokens within a head
  const int64_t given = t.stride[d], vector = max_of<int64_t>(1, align / size_of(t.dtype)), row = t.ndim > max_of(d, heads) + 1 ? t.shape[t.ndim - 1] : 1;
  const int64_t pitch = inside && t.shape[heads] > 1 ? min_of(pitch_of(t, heads), kFarthest) : row;
  const int64_t packed = inside ? t.shape[heads] * pitch : row;
  const bool is_distance = given >= row && given < kFarthest && given % vector == 0;
  if (is_distance && (given >= packed || pitch >= 2 * given)) return given;  // behind all heads, or between the rows of one
  return pitch == row ? packed : 0;                                          // heads that lie apart, and no word of where tokens do
}

std::string shape_text(const Tensor& t) { return numbers_text(t.shape, clamp_to(t.ndim, 0, 4)); }

void check_tensor(const Tensor& t, const Wanted& w) {
  // Messages are built behind an `if`: a run that is right allocates nothing.
  const auto refuse = [&]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
    fail(ErrorCode::invalid_argument, "{}: {}: {}", w.where, w.name, kvloom::format(format, std::forward<Args>(args)...));
  };
  if (t.ndim == 0 && t.data == nullptr) refuse("got no tensor, wanted {}", w.dims);
  if (t.ndim != w.ndim) refuse("rank: got {} dimensions, wanted {} {}", t.ndim, w.ndim, w.dims);
  constexpr int64_t longest = int64_t(1) << 48;  // keeps every product below 128 bits
  bool fits = true;
  for (int32_t d = 0; d < t.ndim; ++d)
    fits = fits && t.shape[d] >= 0 && t.shape[d] <= longest && (w.shape[d] == kAny || t.shape[d] == w.shape[d]);
  if (!fits) refuse("shape: got {}, wanted {} = {}{}", shape_text(t), numbers_text(w.shape, w.ndim, true), w.dims, w.remedy);
  if (t.dtype != w.dtype) {
    refuse("dtype: got {}, wanted {}{}", is_dtype(t.dtype) ? name_of(t.dtype) : "an unknown value", name_of(w.dtype), w.dtype_from);
  }
  if (!has_elements(t)) return;
  if (t.data == nullptr) refuse("data: got a null pointer, wanted memory of {} elements", shape_text(t));
  const int32_t last = t.ndim - 1;
  if (!w.any_strides && t.shape[last] > 1 && t.stride[last] != 1) {
    refuse("stride: got {} along the last dimension, wanted 1; copy the tensor to make its last dimension contiguous", t.stride[last]);
  }
  if (reinterpret_cast<uintptr_t>(t.data) % uintptr_t(size_of(t.dtype)) != 0) {
    refuse("data: got an address that is not a multiple of {} bytes ({}), wanted one that is", size_of(t.dtype), t.data);
  }
  const Extent e = extent_of(t);
  if (e.high - e.low > __int128(1) << 62) {
    refuse("stride: got {} over shape {}, wanted offsets below 2^62 bytes", numbers_text(t.stride, t.ndim), shape_text(t));
  }
}

namespace {

/// True if every dimension steps over all that those behind it span: what nearly all tensors do. Others may still be writable.
bool is_nested(const Tensor& t) {
  int64_t reach = 1;
  for (int32_t d = t.ndim - 1; d >= 0; --d) {
    if (t.shape[d] == 1) continue;
    if (t.stride[d] < reach) return false;
    reach += t.stride[d] * (t.shape[d] - 1);  // check_tensor: below 2^62 bytes
  }
  return true;
}

}  // namespace

void check_writable(const Tensor& t, const char* where, const char* name) {
  if (!has_elements(t) || is_nested(t)) return;
  // Dimensions by rising stride: each must step over all that the smaller ones span.
  __int128 reach = 1;
  uint32_t done = 0;
  for (int32_t i = 0; i < t.ndim; ++i) {
    int32_t d = -1;
    for (int32_t c = 0; c < t.ndim; ++c) {
      if (!(done >> c & 1) && (d < 0 || pitch_of(t, c) < pitch_of(t, d))) d = c;
    }
    done |= 1u << d;
    if (t.shape[d] == 1) continue;
    const __int128 stride = pitch_of(t, d);
    if (stride < reach) {
      fail(ErrorCode::invalid_argument,
           "{}: {}: stride: got {} over shape {}, wanted strides that keep its elements apart; parts of it would "
           "be written twice",
           where, name, numbers_text(t.stride, t.ndim), shape_text(t));
    }
    reach += stride * (t.shape[d] - 1);
  }
}

}  // namespace api
}  // namespace kvloom
