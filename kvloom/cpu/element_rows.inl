// The row operations of one target; included by element_rows_<target>.cc with KVLOOM_TARGET set to the target's namespace.
namespace kvloom::cpu::KVLOOM_TARGET {
namespace {

/// One vector of elements, and one element, of each type.
struct F32 {
  using T = float;
  static Vec load_vec(const T* p) { return load(p); }
  static float load_one(T x) { return x; }
};
struct F16 {
  using T = uint16_t;
  static Vec load_vec(const T* p) { return load_f16(p); }
  static float load_one(T x) { return f16_to_float(x); }
};
struct Bf16 {
  using T = uint16_t;
  static Vec load_vec(const T* p) { return load_bf16(p); }
  static float load_one(T x) { return bf16_to_float(x); }
};
struct E4m3 {
  using T = uint8_t;
  static Vec load_vec(const T* p) { return load_e4m3(p); }
  static float load_one(T x) { return e4m3_to_float(x); }
};
struct E5m2 {
  using T = uint8_t;
  static Vec load_vec(const T* p) { return load_e5m2(p); }
  static float load_one(T x) { return e5m2_to_float(x); }
};

/// Calls f with the reader of `type`.
template <class F>
void with_type(DType type, F&& f) {
  switch (type) {
    case DType::f32:
      return f(F32{});
    case DType::f16:
      return f(F16{});
    case DType::bf16:
      return f(Bf16{});
    case DType::e4m3:
      return f(E4m3{});
    case DType::e5m2:
      return f(E5m2{});
  }
}

void widen(const void* src, DType type, int64_t n, float* out) {
  with_type(type, [&]<class E>(E) {
    const auto* p = static_cast<const typename E::T*>(src);
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(out + i, E::load_vec(p + i));
    for (; i < n; ++i) out[i] = E::load_one(p[i]);
  });
}

void weigh(const void* src, DType type, int64_t n, float weight, float* acc) {
  with_type(type, [&]<class E>(E) {
    const auto* p = static_cast<const typename E::T*>(src);
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(acc + i, mul(set(weight), E::load_vec(p + i)));
    for (; i < n; ++i) acc[i] = weight * E::load_one(p[i]);
  });
}

void add_weighed(const void* src, DType type, int64_t n, float weight, float* acc) {
  with_type(type, [&]<class E>(E) {
    const auto* p = static_cast<const typename E::T*>(src);
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(acc + i, fma(set(weight), E::load_vec(p + i), load(acc + i)));
    for (; i < n; ++i) acc[i] = __builtin_fmaf(weight, E::load_one(p[i]), acc[i]);
  });
}

/// All ones where `yes`: choices by masks keep branches out, which the compiler would not make vectors of.
KVLOOM_SIMD uint32_t mask_if(bool yes) { return 0u - uint32_t(yes); }
KVLOOM_SIMD uint32_t choose(uint32_t mask, uint32_t a, uint32_t b) { return (a & mask) | (b & ~mask); }

/// The arithmetic of float_to_e4m3 and float_to_e5m2 (base/dtype.h) with every case computed and one chosen.
/// kMantissa: bits of the mantissa. kBias: exponent bias of fp32 less that of fp8. kMax: largest finite code.
template <int kMantissa, uint32_t kBias, uint32_t kMax>
KVLOOM_SIMD uint8_t narrow_fp8(float x) {
  constexpr int kShift = 23 - kMantissa;
  constexpr uint32_t kMinNormal = (kBias + 1) << 23;
  constexpr uint32_t kUnit = (kBias + 1 + uint32_t(kShift)) << 23;  // its last fp32 bit weighs as much as fp8's smallest subnormal
  constexpr uint32_t kInf = 0x7f800000u;
  const uint32_t u = float_to_bits(x), a = u & 0x7fffffffu, small = mask_if(a < kMinNormal);
  const uint32_t subnormal = float_to_bits(bits_to_float(a & small) + bits_to_float(kUnit)) - kUnit;
  const uint32_t rounded = a + ((1u << (kShift - 1)) - 1) + ((a >> kShift) & 1u);
  const uint32_t normal = (rounded >> kShift) - (kBias << kMantissa);
  uint32_t code = choose(small, subnormal, choose(mask_if(normal > kMax), kMax, normal));
  code = choose(mask_if(a > kInf), 0x7fu, code);
  return uint8_t(code | ((u >> 24) & 0x80u));
}

template <int kMantissa, uint32_t kBias, uint32_t kMax>
void narrow_fp8_row(const float* __restrict src, int64_t n, uint8_t* __restrict dst) {
  for (int64_t i = 0; i < n; ++i) dst[i] = narrow_fp8<kMantissa, kBias, kMax>(src[i]);
}

void narrow(const float* src, int64_t n, DType type, void* dst) {
  auto* half = static_cast<uint16_t*>(dst);
  int64_t i = 0;
  switch (type) {
    case DType::f32:
      __builtin_memcpy(dst, src, size_t(n) * sizeof(float));
      return;
    case DType::f16:
      for (; i + kLanes <= n; i += kLanes) store_f16(half + i, load(src + i));
      for (; i < n; ++i) half[i] = float_to_f16(src[i]);
      return;
    case DType::bf16:
      for (; i + kLanes <= n; i += kLanes) store_bf16(half + i, load(src + i));
      for (; i < n; ++i) half[i] = float_to_bf16(src[i]);
      return;
    case DType::e4m3:
      return narrow_fp8_row<3, 120, 0x7e>(src, n, static_cast<uint8_t*>(dst));
    case DType::e5m2:
      return narrow_fp8_row<2, 112, 0x7b>(src, n, static_cast<uint8_t*>(dst));
  }
}

}  // namespace

constinit const ElementRows kElementRows{widen, narrow, weigh, add_weighed};

}  // namespace kvloom::cpu::KVLOOM_TARGET
