// The scan of one target, left to the compiler's vectors; included by index_scan_<target>.cc with KVLOOM_TARGET set to its namespace.
namespace kvloom::cpu::KVLOOM_TARGET {
namespace {

template <class T>
IndexScan scan(const T* ids, int64_t n) {
  constexpr int64_t kLanes = 128 / int64_t(sizeof(T));  // several vectors at once: a maximum waits for the one before
  T high[kLanes], bits[kLanes];
  for (int64_t j = 0; j < kLanes; ++j) high[j] = -1, bits[j] = 0;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) {
      high[j] = high[j] < ids[i + j] ? ids[i + j] : high[j];
      bits[j] |= ids[i + j];
    }
  }
  for (; i < n; ++i) {
    high[0] = high[0] < ids[i] ? ids[i] : high[0];
    bits[0] |= ids[i];
  }
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t j = 0; j < half; ++j) {
      high[j] = high[j] < high[j + half] ? high[j + half] : high[j];
      bits[j] |= bits[j + half];
    }
  }
  return {int64_t(high[0]), bits[0] < 0};
}

}  // namespace

IndexScan scan_index(const void* ids, bool is_64, int64_t n) {
  return is_64 ? scan(static_cast<const int64_t*>(ids), n) : scan(static_cast<const int32_t*>(ids), n);
}

}  // namespace kvloom::cpu::KVLOOM_TARGET
