#include "kvloom/ref/element.h"

#include <cmath>

namespace kvloom::ref {
namespace {

constexpr int64_t kSlots = 2048;
constexpr int64_t kNoPosition = -(int64_t(1) << 62);

// All values of the types narrow enough to list: decoding by table keeps a row of 100k keys at memory speed.
template <class Code>
std::vector<float> values_of(int codes, Code decode) {
  std::vector<float> values(codes);
  for (int i = 0; i < codes; ++i) values[i] = decode(i);
  return values;
}

// Llama 3.1: long wavelengths are stretched by `scaling`, short ones kept, in between a linear blend in context / wavelength.
double frequency(const RopeSpec& s, int32_t rotary_dim, int32_t pair) {
  const double plain = std::exp(-2.0 * pair / rotary_dim * std::log(double(s.theta)));
  const double stretched = plain / double(s.scaling);
  if (!(s.high_freq_factor > 0.0f)) return stretched;
  const double turns_in_context = double(s.original_context) * plain / (2.0 * std::acos(-1.0));
  const double low = s.low_freq_factor, high = s.high_freq_factor;
  if (turns_in_context > high) return plain;
  if (turns_in_context < low) return stretched;
  const double blend = (turns_in_context - low) / (high - low);
  return (1.0 - blend) * stretched + blend * plain;
}

}  // namespace

void load_row(const void* data, DType t, int64_t offset, int32_t n, double* x) {
  static const std::vector<float> e4m3 = values_of(256, [](int i) { return e4m3_to_float(uint8_t(i)); });
  static const std::vector<float> e5m2 = values_of(256, [](int i) { return e5m2_to_float(uint8_t(i)); });
  static const std::vector<float> f16 = values_of(65536, [](int i) { return f16_to_float(uint16_t(i)); });
  const auto* bytes = static_cast<const uint8_t*>(data) + offset * size_of(t);
  const auto* halves = reinterpret_cast<const uint16_t*>(bytes);
  const auto* floats = reinterpret_cast<const float*>(bytes);
  switch (t) {
    case DType::f32:
      for (int32_t i = 0; i < n; ++i) x[i] = floats[i];
      return;
    case DType::f16:
      for (int32_t i = 0; i < n; ++i) x[i] = f16[halves[i]];
      return;
    case DType::bf16:
      for (int32_t i = 0; i < n; ++i) x[i] = bf16_to_float(halves[i]);
      return;
    case DType::e4m3:
      for (int32_t i = 0; i < n; ++i) x[i] = e4m3[bytes[i]];
      return;
    case DType::e5m2:
      for (int32_t i = 0; i < n; ++i) x[i] = e5m2[bytes[i]];
      return;
  }
}

Rope::Rope(const RopeSpec& spec, int32_t head_dim) : mode_(spec.mode), pairs_(0) {
  if (mode_ == RopeMode::none) return;
  const int32_t rotary_dim = spec.rotary_dim > 0 ? spec.rotary_dim : head_dim;
  pairs_ = rotary_dim / 2;
  frequency_.resize(pairs_);
  for (int32_t i = 0; i < pairs_; ++i) frequency_[i] = frequency(spec, rotary_dim, i);
  cached_.assign(kSlots, kNoPosition);
  turns_.resize(kSlots * 2 * pairs_);
}

const double* Rope::turn(int32_t pos) {
  const int64_t slot = uint32_t(pos) % kSlots;
  double* t = turns_.data() + slot * 2 * pairs_;
  if (cached_[slot] == pos) return t;
  cached_[slot] = pos;
  for (int32_t i = 0; i < pairs_; ++i) {
    const double angle = pos * frequency_[i];
    t[i] = std::cos(angle);
    t[pairs_ + i] = std::sin(angle);
  }
  return t;
}

void Rope::rotate(int32_t pos, double* x) {
  if (mode_ == RopeMode::none) return;
  const double* t = turn(pos);
  const bool interleaved = mode_ == RopeMode::interleaved;
  for (int32_t i = 0; i < pairs_; ++i) {
    double& a = x[interleaved ? 2 * i : i];
    double& b = x[interleaved ? 2 * i + 1 : i + pairs_];
    const double c = t[i], s = t[pairs_ + i], first = a;
    a = first * c - b * s;
    b = b * c + first * s;
  }
}

}  // namespace kvloom::ref
