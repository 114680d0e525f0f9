/* The same proof through the C interface. */
#include "kvloom/api/kvloom.h"

#include <stdio.h>
#include <string.h>

int main(void) {
  float q[16], k[16], v[16], o[16];
  const int64_t shape[3] = {1, 1, 16};
  const int32_t indptr[2] = {0, 1}, kv_len[1] = {1};
  kvloom_tensor tq, tk, tv, to;
  kvloom_spec spec;
  kvloom_batch batch;
  kvloom_run_tensors tensors;
  int i;
  for (i = 0; i < 16; ++i) q[i] = 1.0f, k[i] = 0.5f, v[i] = (float)i, o[i] = -1.0f;
  kvloom_spec_init(&spec, sizeof spec);
  spec.num_qo_heads = spec.num_kv_heads = 1;
  spec.head_dim_qk = spec.head_dim_vo = 16;
  spec.storage = KVLOOM_RAGGED;
  kvloom_batch_init(&batch, sizeof batch);
  batch.num_requests = 1;
  batch.qo_indptr.data = indptr, batch.qo_indptr.size = 2, batch.qo_indptr.bits = 32;
  batch.kv_len.data = kv_len, batch.kv_len.size = 1, batch.kv_len.bits = 32;
  batch.list_indptr = batch.qo_indptr;
  kvloom_tensor_init(&tq, q, KVLOOM_F32, 3, shape);
  kvloom_tensor_init(&tk, k, KVLOOM_F32, 3, shape);
  kvloom_tensor_init(&tv, v, KVLOOM_F32, 3, shape);
  kvloom_tensor_init(&to, o, KVLOOM_F32, 3, shape);
  kvloom_run_tensors_init(&tensors, sizeof tensors);
  tensors.q = &tq, tensors.k = &tk, tensors.v = &tv, tensors.o = &to;
  if (kvloom_attention(&spec, &batch, &tensors, NULL) != KVLOOM_OK) return puts(kvloom_last_error()), 1;
  if (memcmp(o, v, sizeof v) != 0) return puts("attention with one key is not that key's value"), 1;
  spec.num_kv_heads = 0;
  if (kvloom_attention(&spec, &batch, &tensors, NULL) != KVLOOM_INVALID_ARGUMENT) return puts("zero heads were accepted"), 1;
  if (kvloom_abi() != KVLOOM_ABI) return puts("another ABI"), 1;
  return 0;
}
