// The scan of one target, by the compiler's own vectors; included by index_scan_<target>.cc with KVLOOM_TARGET set to its namespace.
#include <cstdint>

namespace kvloom::cpu::KVLOOM_TARGET {
namespace {

#if defined(__AVX512F__)
constexpr int64_t kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int64_t kVectorBytes = 32;
#else
constexpr int64_t kVectorBytes = 16;
#endif
constexpr int64_t kBlockBytes = 4096;

/// The scan of a list: what has been seen, in lanes that stay apart until its end.
template <class T>
struct Lanes {
  static constexpr int64_t kLanes = kVectorBytes / int64_t(sizeof(T));
  typedef T Vector __attribute__((vector_size(kVectorBytes), may_alias));
  Vector high = Vector{} - 1, bits{};
  Vector block{};  // where the block begins that holds the first of a lane's largest

  static void raise(Vector& to, const Vector& by) { to = to < by ? by : to; }

  /// What the block from number `at` on comes to.
  void take(const Vector& top, const Vector& any, int64_t at) {
    block = high < top ? Vector{} + T(at) : block;
    raise(high, top);
    bits |= any;
  }
  /// The block at `ids`, aligned. Four vectors at a time: a maximum waits for the one before.
  void see_block(const T* ids, int64_t at) {
    const Vector* const v = reinterpret_cast<const Vector*>(ids);
    Vector top[4] = {v[0], v[1], v[2], v[3]}, any[2] = {v[0] | v[1], v[2] | v[3]};
#pragma GCC unroll 1
    for (int64_t i = 4; i < kBlockBytes / kVectorBytes; i += 4) {
      for (int j = 0; j < 4; ++j) raise(top[j], v[i + j]);
      for (int j = 0; j < 2; ++j) any[j] |= v[i + 2 * j] | v[i + 2 * j + 1];
    }
    for (int j = 1; j < 4; ++j) raise(top[0], top[j]);
    take(top[0], any[0] | any[1], at);
  }
  /// A block of `count` vectors, at least one, less than a whole one.
  void see_vectors(const T* ids, int64_t count, int64_t at) {
    const Vector* const v = reinterpret_cast<const Vector*>(ids);
    Vector top = v[0], any = v[0];
    for (int64_t i = 1; i < count; ++i) {
      raise(top, v[i]);
      any |= v[i];
    }
    take(top, any, at);
  }
  /// One vector, at any address.
  void see_unaligned(const T* ids, int64_t at) {
    Vector v;
    __builtin_memcpy(&v, ids, sizeof v);
    take(v, v, at);
  }
  void see(T id, int64_t at) {
    bits[0] |= id;
    if (high[0] >= id) return;
    high[0] = id;
    block[0] = T(at);
  }
};

template <class T>
IndexScan scan(const T* ids, int64_t n) {
  constexpr int64_t kLanes = Lanes<T>::kLanes, kBlock = kBlockBytes / int64_t(sizeof(T));
  Lanes<T> lanes;
  int64_t i = 0;
  if (n < kLanes || reinterpret_cast<uintptr_t>(ids) % sizeof(T) != 0) {
    for (; i < n; ++i) lanes.see(ids[i], i);
  } else {  // its ends by vectors that may overlap the others: a list of a table is a few hundred ids long, which must not go one by one
    const auto off = int64_t(reinterpret_cast<uintptr_t>(ids) % kVectorBytes) / int64_t(sizeof(T));
    if (off != 0) {
      lanes.see_unaligned(ids, 0);
      i = kLanes - off;
    }
    for (; i + kBlock <= n; i += kBlock) lanes.see_block(ids + i, i);
    const int64_t count = (n - i) / kLanes;
    if (count > 0) lanes.see_vectors(ids + i, count, i);
    if (i + count * kLanes < n) lanes.see_unaligned(ids + (n - kLanes), n - kLanes);
  }
  T high = -1, bits = 0;
  int64_t first = 0;
  for (int64_t j = 0; j < kLanes; ++j) {
    bits |= lanes.bits[j];
    if (lanes.high[j] < high || (lanes.high[j] == high && lanes.block[j] >= first)) continue;
    high = lanes.high[j];
    first = lanes.block[j];
  }
  if (high < 0) return {-1, -1, bits < 0};
  while (ids[first] != high) ++first;
  return {int64_t(high), first, bits < 0};
}

}  // namespace

IndexScan scan_index(const void* ids, bool is_64, int64_t n) {
  return is_64 ? scan(static_cast<const int64_t*>(ids), n) : scan(static_cast<const int32_t*>(ids), n);
}

}  // namespace kvloom::cpu::KVLOOM_TARGET
