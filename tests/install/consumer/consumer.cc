// Attention with one key is that key's value: the shortest proof that the installed library computes.
#include "kvloom/api/engine.h"
#include "kvloom/api/ops.h"
#include "kvloom/attn/state.h"

#include <cstdio>
#include <vector>

int main() {
  kvloom::AttentionSpec spec;
  spec.num_qo_heads = spec.num_kv_heads = 1;
  spec.head_dim_qk = spec.head_dim_vo = 16;
  spec.storage = kvloom::Storage::ragged;
  const std::vector<int32_t> indptr{0, 1}, kv_len{1};
  kvloom::Batch batch;
  batch.num_requests = 1;
  batch.qo_indptr = kvloom::IndexView(indptr.data(), 2);
  batch.kv_len = kvloom::IndexView(kv_len.data(), 1);
  batch.list_indptr = kvloom::IndexView(indptr.data(), 2);
  std::vector<float> q(16, 1.0f), k(16, 0.5f), v(16), o(16, -1.0f);
  for (int i = 0; i < 16; ++i) v[size_t(i)] = float(i);
  kvloom::RunTensors t;
  t.q = kvloom::Tensor::dense(q.data(), kvloom::DType::f32, {1, 1, 16});
  t.k = kvloom::Tensor::dense(k.data(), kvloom::DType::f32, {1, 1, 16});
  t.v = kvloom::Tensor::dense(v.data(), kvloom::DType::f32, {1, 1, 16});
  t.o = kvloom::Tensor::dense(o.data(), kvloom::DType::f32, {1, 1, 16});
  kvloom::attention(spec, batch, t);
  if (o != v) return std::puts("attention with one key is not that key's value"), 1;
  // A variant of one's own: the library has all that its text is compiled with.
  spec.variant.user = kvloom::variant_from_text(
      "struct Own {\n  static bool keep(const kvloom::Coord& c) { return c.kv_pos > 0; }\n};\nKVLOOM_VARIANT(Own)\n", "own");
  kvloom::attention(spec, batch, t);
  for (const float x : o) {
    if (x != 0.0f) return std::puts("a key that the variant masks out has a weight"), 1;
  }
  spec.variant.user = nullptr;
  try {
    spec.num_kv_heads = 0;
    kvloom::attention(spec, batch, t);
    return std::puts("zero heads were accepted"), 1;
  } catch (const kvloom::Error& e) {  // thrown in the library, caught in the program
    if (e.code() != kvloom::ErrorCode::invalid_argument) return 1;
  }
  return 0;
}
