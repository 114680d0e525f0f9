/* kvloom from C: an engine, a plan for a step of two decoding requests, a run. C99; every call returns a status. */
#include "kvloom/api/kvloom.h"

#include <stdio.h>
#include <stdlib.h>

enum { kRequests = 2, kHeads = 8, kKvHeads = 2, kDim = 64, kPageSize = 16, kPages = 16 };

static void check(kvloom_status status) {
  if (status == KVLOOM_OK) return;
  fprintf(stderr, "%s: %s\n", kvloom_status_name(status), kvloom_last_error());
  exit(1);
}

static float* random_floats(size_t n) {
  static uint32_t state = 1;
  float* x = malloc(n * sizeof *x);
  size_t i;
  if (x == NULL) exit(1);
  for (i = 0; i < n; ++i) {
    state = state * 1664525u + 1013904223u;
    x[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
  }
  return x;
}

int main(void) {
  const int64_t q_shape[3] = {kRequests, kHeads, kDim}, kv_shape[4] = {kPages, kPageSize, kKvHeads, kDim},
                lse_shape[2] = {kRequests, kHeads};
  /* Request 0 has 100 keys in 7 pages, request 1 has 20 in 2. */
  const int32_t qo_indptr[3] = {0, 1, 2}, kv_len[2] = {100, 20}, list_indptr[3] = {0, 7, 9}, pages[9] = {4, 0, 9, 2, 15, 7, 3, 1, 12};
  float* q = random_floats(kRequests * kHeads * kDim);
  float* k = random_floats((size_t)kPages * kPageSize * kKvHeads * kDim);
  float* v = random_floats((size_t)kPages * kPageSize * kKvHeads * kDim);
  float* o = random_floats(kRequests * kHeads * kDim);
  float* lse = random_floats(kRequests * kHeads);
  kvloom_tensor tq, tk, tv, to, tlse;
  kvloom_spec spec;
  kvloom_capacity capacity;
  kvloom_batch batch;
  kvloom_run_tensors tensors;
  kvloom_engine* engine = NULL;
  kvloom_plan* plan = NULL;
  char* text = NULL;
  int64_t bytes = 0;

  kvloom_spec_init(&spec, sizeof spec);
  spec.num_qo_heads = kHeads;
  spec.num_kv_heads = kKvHeads;
  spec.head_dim_qk = spec.head_dim_vo = kDim;
  spec.page_size = kPageSize;
  spec.causal = 1;
  kvloom_capacity_init(&capacity, sizeof capacity);
  capacity.max_requests = kRequests;
  capacity.max_query_tokens = kRequests;
  capacity.max_kv_tokens = kPages * kPageSize;
  check(kvloom_workspace_size(&spec, &capacity, NULL, &bytes));
  check(kvloom_engine_create(&spec, &capacity, NULL, NULL, 0, &engine));
  printf("kvloom %s, kernel %s, workspace %lld bytes\n", kvloom_version(), kvloom_engine_kernel_key(engine), (long long)bytes);

  kvloom_batch_init(&batch, sizeof batch);
  batch.num_requests = kRequests;
  batch.qo_indptr.data = qo_indptr, batch.qo_indptr.size = 3, batch.qo_indptr.bits = 32;
  batch.kv_len.data = kv_len, batch.kv_len.size = 2, batch.kv_len.bits = 32;
  batch.list_indptr.data = list_indptr, batch.list_indptr.size = 3, batch.list_indptr.bits = 32;
  batch.pages.data = pages, batch.pages.size = 9, batch.pages.bits = 32;
  check(kvloom_plan_create(engine, &batch, &plan));
  check(kvloom_plan_explain(plan, &text));
  fputs(text, stdout);
  kvloom_string_free(text);

  kvloom_tensor_init(&tq, q, KVLOOM_F32, 3, q_shape);
  kvloom_tensor_init(&tk, k, KVLOOM_F32, 4, kv_shape);
  kvloom_tensor_init(&tv, v, KVLOOM_F32, 4, kv_shape);
  kvloom_tensor_init(&to, o, KVLOOM_F32, 3, q_shape);
  kvloom_tensor_init(&tlse, lse, KVLOOM_F32, 2, lse_shape);
  kvloom_run_tensors_init(&tensors, sizeof tensors);
  tensors.q = &tq, tensors.k = &tk, tensors.v = &tv, tensors.o = &to, tensors.lse = &tlse;
  check(kvloom_run(engine, plan, &tensors, NULL));
  printf("o[0] = %+.4f  lse[0] = %+.4f\n", (double)o[0], (double)lse[0]);

  /* What a mistake looks like: */
  spec.num_kv_heads = 3;
  printf("%s\n", kvloom_attention(&spec, &batch, &tensors, NULL) == KVLOOM_INVALID_ARGUMENT ? kvloom_last_error() : "accepted?");

  kvloom_plan_destroy(plan);
  kvloom_engine_destroy(engine);
  free(q), free(k), free(v), free(o), free(lse);
  return 0;
}
