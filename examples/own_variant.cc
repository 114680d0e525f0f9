// A variant of one's own, in the program's text: three documents packed into one prompt, where a token sees its own document alone. What
// comes out is what each document gives by itself. docs/variants.md has the hooks; examples/variants more texts.
#include "kvloom/api/engine.h"

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

namespace {

using kvloom::DType;
using kvloom::IndexView;
using kvloom::Tensor;

constexpr int32_t kHeads = 4, kDim = 64;

constexpr const char* kText = R"(
struct PackedDocuments {
  struct Params {
    kvloom::Array<int32_t, kvloom::dim::any> document;  // of each position of the prompt
    KVLOOM_PARAMS(KVLOOM_PARAM(document, 0, 3))
  };
  static constexpr kvloom::KeyRange range{.causal = true};
  static bool keep(const kvloom::Coord& c, const Params& p) {
    return c.q_pos >= 0 && p.document(c.q_pos) == p.document(c.kv_pos);
  }
};
KVLOOM_VARIANT(PackedDocuments)
)";

/// Causal attention of the requests that `lengths` cuts the tokens into; with `variant`, one of the user's and its parameter.
std::vector<float> attend(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v,
                          std::vector<int32_t> lengths, const kvloom::UserVariant* variant,
                          kvloom::Span<const kvloom::VariantParam> params) {
  kvloom::AttentionSpec spec;
  spec.num_qo_heads = spec.num_kv_heads = kHeads;
  spec.head_dim_qk = spec.head_dim_vo = kDim;
  spec.storage = kvloom::Storage::ragged;
  spec.variant.range.causal = true;
  spec.variant.user = variant;
  std::vector<int32_t> indptr{0};
  for (const int32_t n : lengths) indptr.push_back(indptr.back() + n);
  kvloom::Batch batch;
  batch.num_requests = int32_t(lengths.size());
  batch.qo_indptr = batch.list_indptr = IndexView(indptr.data(), int64_t(indptr.size()));
  batch.kv_len = IndexView(lengths.data(), int64_t(lengths.size()));
  const int64_t tokens = indptr.back();
  std::vector<float> o(q.size());
  kvloom::RunTensors tensors;
  tensors.q = Tensor::dense(q.data(), DType::f32, {tokens, kHeads, kDim});
  tensors.k = Tensor::dense(k.data(), DType::f32, {tokens, kHeads, kDim});
  tensors.v = Tensor::dense(v.data(), DType::f32, {tokens, kHeads, kDim});
  tensors.o = Tensor::dense(o.data(), DType::f32, {tokens, kHeads, kDim});
  tensors.params = params;
  kvloom::attention(spec, batch, tensors);
  return o;
}

}  // namespace

int main() {
  const std::vector<int32_t> lengths = {70, 5, 133};
  std::vector<int32_t> document;
  for (int32_t d = 0; d < 3; ++d) document.insert(document.end(), size_t(lengths[size_t(d)]), d);
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> q(document.size() * kHeads * kDim), k = q, v = q;
  for (std::vector<float>* x : {&q, &k, &v}) {
    for (float& f : *x) f = normal(random);
  }
  try {
    const auto tokens = int64_t(document.size());
    const kvloom::UserVariant* variant = kvloom::variant_from_text(kText, "packed_documents");
    const kvloom::VariantParam params[] = {{"document", document.data(), {tokens}}};
    const std::vector<float> packed = attend(q, k, v, {int32_t(tokens)}, variant, {params, 1});
    const std::vector<float> apart = attend(q, k, v, lengths, nullptr, {});
    double worst = 0.0;
    for (size_t i = 0; i < packed.size(); ++i) worst = std::fmax(worst, std::fabs(double(packed[i]) - apart[i]));
    std::printf("%s\npacked and apart differ by at most %.1e\n", kvloom::describe_variant(*variant).c_str(), worst);
    return worst < 1e-5 ? 0 : 1;
  } catch (const kvloom::Error& e) {
    std::printf("%s\n", e.what());
    return 1;
  }
}
