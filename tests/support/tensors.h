// Tensors for tests: memory of any dtype with shape and strides, random or poisoned, read and written as fp32.
#pragma once

#include "kvloom/api/engine.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace kvloom::test {

/// A contiguous tensor that owns its memory.
struct Array {
  std::vector<char> bytes;
  Tensor t;

  Array() = default;
  Array(DType dtype, std::initializer_list<int64_t> shape) {
    t = Tensor::dense(nullptr, dtype, shape);
    bytes.resize(size_t(count() * size_of(dtype)));
    t.data = bytes.data();
  }
  Array(Array&&) = default;
  Array& operator=(Array&&) = default;

  int64_t count() const {
    int64_t n = 1;
    for (int32_t d = 0; d < t.ndim; ++d) n *= t.shape[d];
    return n;
  }
  float get(int64_t i) const { return load_as_float(bytes.data(), t.dtype, i); }
  void set(int64_t i, float x) { store_from_float(bytes.data(), t.dtype, i, x); }
  void fill(float x) {
    for (int64_t i = 0; i < count(); ++i) set(i, x);
  }
  Array& normal(uint32_t seed, float deviation = 1.0f) {
    std::mt19937 random(seed);
    std::normal_distribution<float> x(0.0f, deviation);
    for (int64_t i = 0; i < count(); ++i) set(i, x(random));
    return *this;
  }
  operator const Tensor&() const { return t; }  // NOLINT: an Array is passed where a Tensor is wanted
};

/// Element (i, j, k, l) of a tensor, whatever its strides.
inline float at(const Tensor& t, int64_t i, int64_t j = 0, int64_t k = 0, int64_t l = 0) {
  const int64_t index[4] = {i, j, k, l};
  int64_t offset = 0;
  for (int32_t d = 0; d < t.ndim; ++d) offset += index[d] * t.stride[d];
  return load_as_float(t.data, t.dtype, offset);
}

}  // namespace kvloom::test
