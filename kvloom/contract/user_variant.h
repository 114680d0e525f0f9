// A variant of the user's own, as the host's compiler found it: its hooks as plain functions, its parameters and where their values lie.
// variants/user.h is what the user's text is written with; api/user_variant.h makes one of these of it. docs/variants.md.
#pragma once

#include "kvloom/contract/params.h"

namespace kvloom {

/// Types that a parameter of a variant may have.
enum class ParamType : int32_t { f32 = 0, i32 = 1, i64 = 2, u8 = 3 };

KVLOOM_HD constexpr int32_t size_of(ParamType t) { return t == ParamType::i64 ? 8 : t == ParamType::u8 ? 1 : 4; }

inline constexpr int32_t kMaxParamDims = 3;

/// Lengths of an array's dimensions, besides plain numbers.
namespace dim {
inline constexpr int32_t any = -1;       // the caller's choice
inline constexpr int32_t qo_heads = -2;  // spec.num_qo_heads
inline constexpr int32_t kv_heads = -3;  // spec.num_kv_heads
inline constexpr int32_t requests = -4;  // of the step
}  // namespace dim

/// One parameter, as the text declares it. A value in UserParams::bytes is the number itself, or for an array its Array<T, ...>
/// (variants/user.h): address, strides in elements (int64), sizes (int32).
struct ParamDecl {
  const char* name;
  ParamType type;
  int32_t ndim;  // 0: a number
  int32_t dims[kMaxParamDims];
  int32_t offset;    // bytes
  double low, high;  // what checks draw values from
};

/// A variant that was compiled for the host. Lives as long as the process; one text is one of these.
struct UserVariant {
  const char* name = "";  // of the struct
  const char* file = "";  // where the text is from, for messages
  const char* text = "";
  uint64_t digest = 0;  // of the text
  Reduction reduction = Reduction::softmax;
  KeyRange range;  // keys outside it are masked out, and never read
  const ParamDecl* params = nullptr;
  int32_t num_params = 0;

  // Hooks for one pair at a time; nullptr: the text has no such hook. They read p.user alone.
  float (*logit)(float score, const Coord& c, const VariantParams& p) = nullptr;
  bool (*keep)(const Coord& c, const VariantParams& p) = nullptr;
  float (*weight)(float logit, const VariantParams& p) = nullptr;
  RowFinish (*finish)(float lse, int32_t q_head, const VariantParams& p) = nullptr;
  float (*slope)(const Coord& c, const VariantParams& p) = nullptr;  // what the text promises of logit; the CPU has no use for it
};

/// Keys that both keep.
KVLOOM_HD constexpr KeyRange both_ranges(const KeyRange& a, const KeyRange& b) {
  KeyRange r{a.causal || b.causal, a.left, a.right};
  if (a.left < 0 || (b.left >= 0 && b.left < a.left)) r.left = b.left;
  if (a.right < 0 || (b.right >= 0 && b.right < a.right)) r.right = b.right;
  return r;
}

}  // namespace kvloom
