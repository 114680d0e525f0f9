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

/// What has been seen, in lanes that stay apart until the last range: a table has a hundred short rows, and a row's lanes take longer to put together
/// than to read.
template <class T>
struct Lanes {
  static constexpr int64_t kLanes = kVectorBytes / int64_t(sizeof(T));
  typedef T Vector __attribute__((vector_size(kVectorBytes), may_alias));
  Vector high, bits{};
  Vector range{};  // number of the range that holds the first of a lane's largest
  T small_high, small_bits = 0, small_range = 0;  // of ranges too short for a vector

  explicit Lanes(T above) : high(Vector{} + above), small_high(above) {}

  static void raise(Vector& to, const Vector& by) { to = to < by ? by : to; }
  static Vector load(const T* ids) {
    Vector v;
    __builtin_memcpy(&v, ids, sizeof v);
    return v;
  }

  void see_short(const T* ids, int64_t n, T number) {
    T top = -1, any = 0;
    for (int64_t i = 0; i < n; ++i) {
      top = top < ids[i] ? ids[i] : top;
      any |= ids[i];
    }
    small_bits |= any;
    small_range = small_high < top ? number : small_range;
    small_high = small_high < top ? top : small_high;
  }
  /// At least kLanes ids. Its ends by vectors that may overlap the others, wherever they lie; what is between, aligned.
  void see(const T* ids, int64_t n, T number) {
    Vector top = load(ids), any = top;
    int64_t i = kLanes - int64_t(reinterpret_cast<uintptr_t>(ids) % kVectorBytes) / int64_t(sizeof(T));
    const Vector* v = reinterpret_cast<const Vector*>(ids + i);
    if (i + 4 * kLanes <= n) {  // four at a time: a maximum waits for the one before
      Vector tops[3] = {top, top, top}, anys[1] = {any};
      for (; i + 4 * kLanes <= n; i += 4 * kLanes, v += 4) {
        raise(top, v[0]);
        for (int j = 0; j < 3; ++j) raise(tops[j], v[j + 1]);
        any |= v[0] | v[1];
        anys[0] |= v[2] | v[3];
      }
      raise(tops[0], tops[1]);
      raise(top, tops[2]);
      raise(top, tops[0]);
      any |= anys[0];
    }
    for (; i + kLanes <= n; i += kLanes, ++v) {
      raise(top, *v);
      any |= *v;
    }
    const Vector end = load(ids + (n - kLanes));
    raise(top, end);
    bits |= any | end;
    range = high < top ? Vector{} + number : range;
    raise(high, top);
  }
};

template <class T>
void scan(const T* ids, const IndexRange* ranges, int count, IndexScan& found) {
  constexpr int64_t kLanes = Lanes<T>::kLanes;
  const bool apart = reinterpret_cast<uintptr_t>(ids) % sizeof(T) != 0;  // no vector is aligned then
  Lanes<T> lanes{T(found.high)};
  for (int i = 0; i < count; ++i) {
    const int64_t n = ranges[i].end - ranges[i].begin;
    const T* const at = ids + ranges[i].begin;
    if (n < kLanes || apart) {
      lanes.see_short(at, n, T(i));
    } else {
      lanes.see(at, n, T(i));
    }
  }
  T high = lanes.small_high, bits = lanes.small_bits, number = lanes.small_range;
  for (int64_t j = 0; j < kLanes; ++j) {
    bits |= lanes.bits[j];
    if (lanes.high[j] < high || (lanes.high[j] == high && lanes.range[j] >= number)) continue;
    high = lanes.high[j];
    number = lanes.range[j];
  }
  found.negative |= bits < 0;
  if (high <= T(found.high)) return;
  int64_t first = ranges[number].begin;
  while (ids[first] != high) ++first;
  found.high = int64_t(high);
  found.first = first;
}

}  // namespace

void scan_index(const void* ids, bool is_64, const IndexRange* ranges, int count, IndexScan& found) {
  is_64 ? scan(static_cast<const int64_t*>(ids), ranges, count, found) : scan(static_cast<const int32_t*>(ids), ranges, count, found);
}

}  // namespace kvloom::cpu::KVLOOM_TARGET
