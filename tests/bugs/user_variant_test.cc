// User variants: the pairs that a hook is asked about, and a mask that the text declares itself.
#include "tests/support/user_texts.h"
#include "tests/variants/variant_texts.h"

namespace kvloom::bugs {
namespace {

using test::Step;

// It counts its calls in an array of the caller's, which is a test's privilege: hooks are functions of their arguments.
constexpr const char* kCounting = R"(
struct Counting {
  struct Params {
    kvloom::Array<int32_t, kvloom::dim::requests> q_len, kv_len;
    kvloom::Array<int32_t, kvloom::dim::requests, kvloom::dim::qo_heads, kvloom::dim::any> calls;  // the last: q_index * kv_len + kv_index
    kvloom::Array<int32_t, 1> strays;
    KVLOOM_PARAMS(KVLOOM_PARAM(q_len, 0, 1), KVLOOM_PARAM(kv_len, 0, 1), KVLOOM_PARAM(calls, 0, 1), KVLOOM_PARAM(strays, 0, 1))
  };

  static bool is_pair(const kvloom::Coord& c, const Params& p) {
    if (c.request < 0 || c.request >= p.q_len.size[0] || c.q_head < 0 || c.q_head >= p.calls.size[1]) return false;
    const int32_t q_len = p.q_len(c.request), kv_len = p.kv_len(c.request);
    return c.q_index >= 0 && c.q_index < q_len && c.q_pos == c.q_index + kv_len - q_len && c.kv_index >= 0 && c.kv_index < kv_len &&
           c.kv_pos == c.kv_index;
  }

  static float logit(float score, const kvloom::Coord& c, const Params& p) {
    const int32_t* counter = p.strays.data;
    if (is_pair(c, p)) counter = &p.calls.data[c.request * p.calls.stride[0] + c.q_head * p.calls.stride[1] + c.q_index * p.kv_len(c.request) + c.kv_index];
    __atomic_fetch_add(const_cast<int32_t*>(counter), 1, __ATOMIC_RELAXED);
    return score;
  }
};
KVLOOM_VARIANT(Counting)
)";

// Chunks that end inside a tile, rows that do not fill one, a request without keys: each pair of a row and a key it keeps is asked about
// once, and no row or key that there is not. (Hooks may be called any number of times: docs/variants.md. The CPU calls once.)
TEST(Hooks, B33_AreAskedOnceAboutPairsThatThereAre) {
  const UserVariant* const user = variant_from_text(kCounting, "counting.h");
  for (const bool causal : {false, true}) {
    for (const Policy policy : {Policy::none, Policy::stream, Policy::fixed_split}) {
      SCOPED_TRACE(testing::Message() << "causal " << causal << ", policy " << int(policy));
      Step s;
      s.spec = test::small_spec();
      s.spec.variant.range.causal = causal;
      s.spec.variant.user = user;
      s.requests = {{1, 1000}, {3, 0}, {37, 129}, {5, 2}};
      s.make();
      const int32_t heads = s.spec.num_qo_heads;
      const int64_t most_pairs = 37 * 129;
      std::vector<int32_t> q_len, calls(s.requests.size() * size_t(heads * most_pairs), 0), strays(1, 0);
      for (const test::Request& r : s.requests) q_len.push_back(r.q_len);
      const VariantParam params[] = {{"q_len", q_len.data(), {4}},
                                     {"kv_len", s.kv_len.data(), {4}},
                                     {"calls", calls.data(), {4, heads, most_pairs}},
                                     {"strays", strays.data(), {1}}};
      s.tensors.params = {params, 4};
      EngineOptions options;
      options.policy = policy;
      options.num_ctas = 7;
      options.split_tokens = 256;
      options.threads = 2;
      test::run_step(s, options);

      EXPECT_EQ(strays[0], 0);
      int64_t wrong = 0;
      for (size_t r = 0; r < s.requests.size(); ++r) {
        for (int64_t h = 0; h < heads; ++h) {
          for (int64_t i = 0; i < q_len[r]; ++i) {
            for (int64_t j = 0; j < s.kv_len[r]; ++j) {
              const bool kept = !causal || j <= i + s.kv_len[r] - q_len[r];
              const int32_t count = calls[size_t((int64_t(r) * heads + h) * most_pairs + i * s.kv_len[r] + j)];
              wrong += kept ? count != 1 : count > 1;
            }
          }
        }
      }
      EXPECT_EQ(wrong, 0);
      test::expect_right(s);  // last: REF asks the hook, too
    }
  }
}

// The text's own arrays hold what the library's mask holds, and both give the same bits: decode, prefill, both in one batch.
TEST(Hooks, B100_AMaskOfTheTextsOwnIsTheLibrarys) {
  const UserVariant* const user = variant_from_text(test::kOwnMask, "bit_mask.h");
  const std::vector<test::Request> steps[] = {{{1, 300}, {1, 17}, {1, 0}}, {{33, 33}, {70, 129}}, {{1, 300}, {7, 64}, {5, 3}, {3, 0}}};
  for (const std::vector<test::Request>& requests : steps) {
    Step own, mine;
    own.requests = mine.requests = requests;
    own.spec = mine.spec = test::small_spec();
    own.spec.variant.custom_mask = true;
    mine.spec.variant.user = user;
    own.make();
    mine.make();
    const VariantParam params[] = {{"bits", mine.mask.data(), {int64_t(mine.mask.size())}},
                                   {"first", mine.mask_indptr.data(), {int64_t(mine.mask_indptr.size())}},
                                   {"kv_len", mine.kv_len.data(), {int64_t(mine.kv_len.size())}}};
    mine.tensors.params = {params, 3};
    test::run_step(own);
    test::run_step(mine);
    EXPECT_TRUE(mine.o.bytes == own.o.bytes && mine.lse.bytes == own.lse.bytes);
    test::expect_right(mine);
  }
}

}  // namespace
}  // namespace kvloom::bugs
