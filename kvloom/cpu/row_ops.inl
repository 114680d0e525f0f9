// What is done to finished rows: merging two states, storing in another type. Compiled once a target.
namespace kvloom::cpu::KVLOOM_TARGET {

/// y = a * x + b * y.
void axpby_row(float a, const float* x, float b, float* y, int64_t n) {
  const Vec va = set(a), vb = set(b);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, add(mul(va, load(x + i)), mul(vb, load(y + i))));
  for (; i < n; ++i) y[i] = a * x[i] + b * y[i];
}

/// y[i] = a * x[i], rounded to nearest even.
void store_row(float a, const float* x, void* y, DType dtype, int64_t n) {
  const Vec va = set(a);
  int64_t i = 0;
  if (dtype == DType::f32) {
    for (; i + kLanes <= n; i += kLanes) store(static_cast<float*>(y) + i, mul(va, load(x + i)));
  } else if (dtype == DType::bf16) {
    for (; i + kLanes <= n; i += kLanes) store_bf16(static_cast<uint16_t*>(y) + i, mul(va, load(x + i)));
  } else if (dtype == DType::f16) {
    for (; i + kLanes <= n; i += kLanes) store_f16(static_cast<uint16_t*>(y) + i, mul(va, load(x + i)));
  }
  for (; i < n; ++i) store_from_float(y, dtype, i, a * x[i]);
}

}  // namespace kvloom::cpu::KVLOOM_TARGET
