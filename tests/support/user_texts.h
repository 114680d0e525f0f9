// Texts of users' variants that CPU and GPU tests share.
#pragma once

namespace kvloom::test {

/// The library's mask as arrays of the text's own.
inline constexpr const char* kOwnMask = R"(
struct BitMask {
  struct Params {
    kvloom::Array<uint8_t, kvloom::dim::any> bits;
    kvloom::Array<int64_t, kvloom::dim::any> first;
    kvloom::Array<int32_t, kvloom::dim::requests> kv_len;
    KVLOOM_PARAMS(KVLOOM_PARAM(bits, 0, 255), KVLOOM_PARAM(first, 0, 1), KVLOOM_PARAM(kv_len, 0, 1))
  };
  static bool keep(const kvloom::Coord& c, const Params& p) {
    const int64_t bit = int64_t(c.q_index) * p.kv_len(c.request) + c.kv_index;
    return p.bits(p.first(c.request) + bit / 8) >> bit % 8 & 1;
  }
};
KVLOOM_VARIANT(BitMask)
)";

/// Both hooks note what they are asked about that is no row and key of the step, which is a test's privilege: hooks are functions of their arguments.
inline constexpr const char* kStraying = R"(
struct Straying {
  struct Params {
    kvloom::Array<int32_t, kvloom::dim::requests> q_len, kv_len;
    kvloom::Array<int32_t, 2> strays;  // of keep, of logit
    KVLOOM_PARAMS(KVLOOM_PARAM(q_len, 0, 1), KVLOOM_PARAM(kv_len, 0, 1), KVLOOM_PARAM(strays, 0, 1))
  };
  static void look(const kvloom::Coord& c, const Params& p, int32_t hook) {
    bool pair = c.request >= 0 && c.request < p.q_len.size[0] && c.q_head >= 0;
    if (pair) {
      const int32_t q_len = p.q_len(c.request), kv_len = p.kv_len(c.request);
      pair = c.q_index >= 0 && c.q_index < q_len && c.q_pos == c.q_index + kv_len - q_len && c.kv_index >= 0 && c.kv_index < kv_len && c.kv_pos == c.kv_index;
    }
    if (!pair) const_cast<int32_t*>(p.strays.data)[hook] = 1;
  }
  static bool keep(const kvloom::Coord& c, const Params& p) {
    look(c, p, 0);
    return c.kv_index % 7 != 3;
  }
  static float logit(float score, const kvloom::Coord& c, const Params& p) {
    look(c, p, 1);
    return score;
  }
};
KVLOOM_VARIANT(Straying)
)";

}  // namespace kvloom::test
