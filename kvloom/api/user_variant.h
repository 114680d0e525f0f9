// Variants of the user's own: one C++ text with hooks, for the CPU, for GPUs and for the reference that checks compare with.
// docs/variants.md.
//
//   spec.variant.user = kvloom::variant_from_file("alibi_slopes.h");
//   kvloom::Engine engine(spec, capacity);
//   const kvloom::VariantParam params[] = {{"slopes", slopes, {32}}};   // bound by name at every run
//   tensors.params = {params, 1};
#pragma once

#include "kvloom/contract/user_variant.h"

#include <initializer_list>
#include <string>

namespace kvloom {

/// A value for a parameter of the variant, by its name. Arrays are the caller's, where the engine runs, and are read in place.
struct VariantParam {
  const char* name = "";
  ParamType type = ParamType::f32;
  double number = 0.0;         // a number; integers up to 2^53
  const void* data = nullptr;  // an array
  int32_t ndim = 0;            // 0: a number
  int64_t shape[kMaxParamDims] = {0, 0, 0};
  int64_t stride[kMaxParamDims] = {0, 0, 0};  // elements

  VariantParam() = default;
  VariantParam(const char* n, double value) : name(n), number(value) {}
  /// Row-major, contiguous.
  VariantParam(const char* n, const float* array, std::initializer_list<int64_t> dims) : VariantParam(n, ParamType::f32, array, dims) {}
  VariantParam(const char* n, const int32_t* array, std::initializer_list<int64_t> dims) : VariantParam(n, ParamType::i32, array, dims) {}
  VariantParam(const char* n, const int64_t* array, std::initializer_list<int64_t> dims) : VariantParam(n, ParamType::i64, array, dims) {}
  VariantParam(const char* n, const uint8_t* array, std::initializer_list<int64_t> dims) : VariantParam(n, ParamType::u8, array, dims) {}
  VariantParam(const char* n, ParamType t, const void* array, std::initializer_list<int64_t> dims) : name(n), type(t), data(array) {
    for (const int64_t d : dims) {
      if (ndim < kMaxParamDims) shape[ndim] = d;
      ++ndim;
    }
    int64_t step = 1;
    for (int32_t d = (ndim < kMaxParamDims ? ndim : kMaxParamDims) - 1; d >= 0; --d) {
      stride[d] = step;
      step = int64_t(uint64_t(step) * uint64_t(shape[d]));  // senseless sizes are refused at the run
    }
  }
};

/// The variant that `text` defines: compiled by the host's C++ compiler (KVLOOM_CXX, else c++, g++, clang++ on the PATH), or found in the
/// cache. The same text gives the same pointer; it lives as long as the process. `file`: the text's name in messages.
/// Throws invalid_argument (what is wrong with the text: the compiler's words, with file and line), unsupported (no compiler).
const UserVariant* variant_from_text(const std::string& text, const std::string& file = "");
/// The same from a file. Throws io where it can't be read.
const UserVariant* variant_from_file(const std::string& path);

/// For people: "AlibiSlopes (alibi_slopes.h): hooks logit; parameters slopes f32 [num_qo_heads]".
std::string describe_variant(const UserVariant& variant);

/// The spec with what its user's variant says of itself: reduction, and the range of keys that both keep. What an engine does first.
AttentionSpec with_user_variant(const AttentionSpec& spec);

}  // namespace kvloom
