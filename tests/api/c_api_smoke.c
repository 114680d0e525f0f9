/* The C interface, compiled as C99: every function once, and every kind of failure. Returns 0, or the line of the first surprise. */
#include "kvloom/api/kvloom.h"

#include <stddef.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(what)              \
  do {                            \
    if (!(what)) return __LINE__; \
  } while (0)

enum { kRows = 3, kHeads = 4, kKvHeads = 2, kDim = 16, kPageSize = 4, kPages = 8 };

static kvloom_indices indices(const int32_t* data, int64_t size) {
  kvloom_indices i;
  i.data = data;
  i.size = size;
  i.bits = 32;
  return i;
}

/* Two requests: 2 query tokens over 9 keys, 1 over 5. */
static const int32_t kQoIndptr[3] = {0, 2, 3}, kKvLen[2] = {9, 5}, kListIndptr[3] = {0, 3, 5}, kPageIds[5] = {6, 0, 3, 7, 1};
static float q[kRows * kHeads * kDim], k[kPages * kPageSize * kKvHeads * kDim], v[kPages * kPageSize * kKvHeads * kDim];
static float o[kRows * kHeads * kDim], o_again[kRows * kHeads * kDim], lse[kRows * kHeads], lse_again[kRows * kHeads];
static const int64_t kQShape[3] = {kRows, kHeads, kDim}, kCacheShape[4] = {kPages, kPageSize, kKvHeads, kDim},
                     kLseShape[2] = {kRows, kHeads};

static void fill(float* x, size_t n, uint32_t seed) {
  size_t i;
  for (i = 0; i < n; ++i) {
    seed = seed * 1664525u + 1013904223u;
    x[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
  }
}

static void make_spec(kvloom_spec* spec, kvloom_capacity* capacity) {
  kvloom_spec_init(spec, sizeof *spec);
  spec->num_qo_heads = kHeads;
  spec->num_kv_heads = kKvHeads;
  spec->head_dim_qk = spec->head_dim_vo = kDim;
  spec->page_size = kPageSize;
  spec->causal = 1;
  kvloom_capacity_init(capacity, sizeof *capacity);
  capacity->max_requests = 2;
  capacity->max_query_tokens = kRows;
  capacity->max_kv_tokens = 32;
}

static void make_batch(kvloom_batch* batch) {
  kvloom_batch_init(batch, sizeof *batch);
  batch->num_requests = 2;
  batch->qo_indptr = indices(kQoIndptr, 3);
  batch->kv_len = indices(kKvLen, 2);
  batch->list_indptr = indices(kListIndptr, 3);
  batch->pages = indices(kPageIds, 5);
}

static kvloom_tensor tq, tk, tv, to, tlse;

static void make_tensors(kvloom_run_tensors* t) {
  kvloom_tensor_init(&tq, q, KVLOOM_F32, 3, kQShape);
  kvloom_tensor_init(&tk, k, KVLOOM_F32, 4, kCacheShape);
  kvloom_tensor_init(&tv, v, KVLOOM_F32, 4, kCacheShape);
  kvloom_tensor_init(&to, o, KVLOOM_F32, 3, kQShape);
  kvloom_tensor_init(&tlse, lse, KVLOOM_F32, 2, kLseShape);
  kvloom_run_tensors_init(t, sizeof *t);
  t->q = &tq, t->k = &tk, t->v = &tv, t->o = &to, t->lse = &tlse;
}

static int engine_plan_run(void) {
  kvloom_spec spec;
  kvloom_capacity capacity;
  kvloom_batch batch;
  kvloom_run_tensors tensors;
  kvloom_engine* engine = NULL;
  kvloom_plan *plan = NULL, *other = NULL;
  int64_t bytes = 0, size = 0, other_size = 0;
  const void *data = NULL, *other_data = NULL;
  uint64_t key = 0;
  char *text = NULL, *json = NULL, *svg = NULL;
  make_spec(&spec, &capacity);
  make_batch(&batch);
  make_tensors(&tensors);
  EXPECT(kvloom_workspace_size(&spec, &capacity, NULL, &bytes) == KVLOOM_OK && bytes > 0);
  EXPECT(kvloom_engine_create(&spec, &capacity, NULL, NULL, 0, &engine) == KVLOOM_OK && engine != NULL);
  EXPECT(strncmp(kvloom_engine_kernel_key(engine), "attend.cpu-", 11) == 0);
  EXPECT(kvloom_engine_explain(engine, &text) == KVLOOM_OK && strstr(text, "declined") != NULL);
  kvloom_string_free(text);
  EXPECT(kvloom_plan_create(engine, &batch, &plan) == KVLOOM_OK && plan != NULL);
  EXPECT(kvloom_run(engine, plan, &tensors, NULL) == KVLOOM_OK);
  EXPECT(isfinite(o[0]) && isfinite(lse[0]));
  EXPECT(kvloom_plan_create(engine, &batch, &other) == KVLOOM_OK);
  EXPECT(kvloom_plan_update(engine, other, &batch) == KVLOOM_OK);
  EXPECT(kvloom_plan_bytes(plan, &data, &size) == KVLOOM_OK && kvloom_plan_bytes(other, &other_data, &other_size) == KVLOOM_OK);
  EXPECT(size == other_size && memcmp(data, other_data, (size_t)size) == 0);
  EXPECT(kvloom_plan_graph_key(plan, &key) == KVLOOM_OK);
  EXPECT(kvloom_plan_explain(plan, &text) == KVLOOM_OK && strlen(text) > 0);
  EXPECT(kvloom_plan_json(plan, &json) == KVLOOM_OK && json[0] == '{');
  EXPECT(kvloom_plan_svg(plan, &svg) == KVLOOM_OK && strstr(svg, "<svg") != NULL);
  kvloom_string_free(text);
  kvloom_string_free(json);
  kvloom_string_free(svg);
  kvloom_engine_destroy(engine); /* plans may go last */
  EXPECT(kvloom_plan_graph_key(plan, &key) == KVLOOM_OK);
  kvloom_plan_destroy(plan);
  kvloom_plan_destroy(other);
  to.data = o_again, tlse.data = lse_again;
  EXPECT(kvloom_attention(&spec, &batch, &tensors, NULL) == KVLOOM_OK);
  EXPECT(memcmp(o, o_again, sizeof o) == 0 && memcmp(lse, lse_again, sizeof lse) == 0);
  return 0;
}

static int failures(void) {
  kvloom_spec spec;
  kvloom_capacity capacity;
  kvloom_batch batch;
  kvloom_run_tensors tensors;
  kvloom_engine *engine = NULL, *other = NULL;
  kvloom_plan* plan = NULL;
  const int64_t short_shape[3] = {2, kHeads, kDim};
  int64_t bytes = -1;
  make_spec(&spec, &capacity);
  make_batch(&batch);
  make_tensors(&tensors);
  EXPECT(kvloom_workspace_size(NULL, &capacity, NULL, &bytes) == KVLOOM_INVALID_ARGUMENT && bytes == -1);
  EXPECT(strstr(kvloom_last_error(), "kvloom_spec") != NULL);
  EXPECT(kvloom_workspace_size(&spec, &capacity, NULL, NULL) == KVLOOM_INVALID_ARGUMENT);
  spec.struct_size = 0;
  EXPECT(kvloom_workspace_size(&spec, &capacity, NULL, &bytes) == KVLOOM_INVALID_ARGUMENT &&
         strstr(kvloom_last_error(), "struct_size: got 0") != NULL);
  make_spec(&spec, &capacity);
  spec.num_kv_heads = 3;
  EXPECT(kvloom_engine_create(&spec, &capacity, NULL, NULL, 0, &engine) == KVLOOM_INVALID_ARGUMENT && engine == NULL);
  EXPECT(strstr(kvloom_last_error(), "num_qo_heads: got 4 over 3 KV heads") != NULL);
  make_spec(&spec, &capacity);
  spec.head_dim_qk = 1024;
  EXPECT(kvloom_engine_create(&spec, &capacity, NULL, NULL, 0, &engine) == KVLOOM_UNSUPPORTED);
  make_spec(&spec, &capacity);
  EXPECT(kvloom_engine_create(&spec, &capacity, NULL, q, 64, &engine) != KVLOOM_OK && engine == NULL);
  EXPECT(kvloom_engine_create(&spec, &capacity, NULL, NULL, 0, &engine) == KVLOOM_OK);
  EXPECT(kvloom_engine_create(&spec, &capacity, NULL, NULL, 0, &other) == KVLOOM_OK);
  EXPECT(kvloom_plan_create(engine, NULL, &plan) == KVLOOM_INVALID_ARGUMENT && plan == NULL);
  batch.qo_indptr.bits = 16;
  EXPECT(kvloom_plan_create(engine, &batch, &plan) == KVLOOM_INVALID_ARGUMENT &&
         strstr(kvloom_last_error(), "kvloom_plan_create: qo_indptr: bits: got 16") != NULL);
  make_batch(&batch);
  batch.num_requests = 3;
  EXPECT(kvloom_plan_create(engine, &batch, &plan) != KVLOOM_OK && plan == NULL);
  make_batch(&batch);
  EXPECT(kvloom_plan_create(engine, &batch, &plan) == KVLOOM_OK);
  EXPECT(kvloom_run(other, plan, &tensors, NULL) == KVLOOM_MISMATCH);
  EXPECT(kvloom_run(engine, NULL, &tensors, NULL) == KVLOOM_INVALID_ARGUMENT);
  EXPECT(kvloom_run(NULL, plan, &tensors, NULL) == KVLOOM_INVALID_ARGUMENT);
  tq.shape = short_shape;
  EXPECT(kvloom_run(engine, plan, &tensors, NULL) == KVLOOM_INVALID_ARGUMENT && strstr(kvloom_last_error(), "wanted [3, 4, 16]") != NULL);
  make_tensors(&tensors);
  tq.device_type = 2; /* a CUDA tensor */
  EXPECT(kvloom_run(engine, plan, &tensors, NULL) == KVLOOM_INVALID_ARGUMENT &&
         strstr(kvloom_last_error(), "copy the tensor to the host") != NULL);
  make_tensors(&tensors);
  tk.dtype_code = 0; /* integers */
  EXPECT(kvloom_run(engine, plan, &tensors, NULL) == KVLOOM_INVALID_ARGUMENT &&
         strstr(kvloom_last_error(), "kvloom_run: k: dtype") != NULL);
  make_tensors(&tensors);
  tensors.q = NULL;
  EXPECT(kvloom_run(engine, plan, &tensors, NULL) == KVLOOM_INVALID_ARGUMENT && strstr(kvloom_last_error(), "q: got no tensor") != NULL);
  kvloom_plan_destroy(plan);
  kvloom_engine_destroy(engine);
  kvloom_engine_destroy(other);
  kvloom_engine_destroy(NULL);
  kvloom_plan_destroy(NULL);
  kvloom_bsr_destroy(NULL);
  kvloom_string_free(NULL);
  EXPECT(kvloom_engine_kernel_key(NULL) == NULL);
  EXPECT(strcmp(kvloom_status_name(KVLOOM_MISMATCH), "mismatch") == 0);
  EXPECT(kvloom_abi() == KVLOOM_ABI && strlen(kvloom_version()) >= 5);
  return 0;
}

/* A caller built with a longer header. */
static int other_headers(void) {
  struct {
    kvloom_options known;
    int64_t unknown;
  } longer;
  kvloom_spec spec;
  kvloom_capacity capacity;
  kvloom_options options;
  int64_t plain = 0, bytes = 0;
  make_spec(&spec, &capacity);
  kvloom_options_init(&options, sizeof options);
  options.threads = 2;
  EXPECT(kvloom_workspace_size(&spec, &capacity, &options, &plain) == KVLOOM_OK);
  memset(&longer, 0xff, sizeof longer);
  kvloom_options_init(&longer.known, sizeof longer);
  EXPECT(longer.unknown == 0 && longer.known.struct_size == sizeof longer);
  longer.known.threads = 2;
  EXPECT(kvloom_workspace_size(&spec, &capacity, &longer.known, &bytes) == KVLOOM_OK && bytes == plain);
  longer.unknown = 1;
  EXPECT(kvloom_workspace_size(&spec, &capacity, &longer.known, &bytes) == KVLOOM_UNSUPPORTED);
  options.kernel = "sm95";
  EXPECT(kvloom_workspace_size(&spec, &capacity, &options, &bytes) == KVLOOM_INVALID_ARGUMENT);
  EXPECT(strstr(kvloom_last_error(), "options.kernel: got \"sm95\", wanted one of sm90, sm80") != NULL);
  options.kernel = "sm80"; /* one that this engine, on the CPU, can't have */
  EXPECT(kvloom_workspace_size(&spec, &capacity, &options, &bytes) == KVLOOM_UNSUPPORTED);
  options.struct_size = offsetof(kvloom_options, kernel); /* a caller from before there was a choice */
  EXPECT(kvloom_workspace_size(&spec, &capacity, &options, &bytes) == KVLOOM_OK && bytes == plain);
  options.struct_size = offsetof(kvloom_options, device); /* a caller of the first release */
  options.device = 77;
  EXPECT(kvloom_workspace_size(&spec, &capacity, &options, &bytes) == KVLOOM_OK && bytes == plain);
  options.struct_size = offsetof(kvloom_options, device) - 8; /* shorter: garbage */
  EXPECT(kvloom_workspace_size(&spec, &capacity, &options, &bytes) == KVLOOM_INVALID_ARGUMENT);
  return 0;
}

static int operations(void) {
  static float o_b[kRows * kHeads * kDim], lse_b[kRows * kHeads], merged[kRows * kHeads * kDim], merged_lse[kRows * kHeads];
  static float cache_k[kPages * kPageSize * kKvHeads * kDim], cache_v[kPages * kPageSize * kKvHeads * kDim];
  const int64_t states[4] = {1, 3, kHeads, kDim}, state_lse[3] = {1, 3, kHeads}, one[3] = {1, kHeads, kDim}, one_lse[2] = {1, kHeads};
  const int64_t new_shape[3] = {2, kKvHeads, kDim};
  const int32_t indptr[2] = {0, 3}, request[2] = {1, 0}, pos[2] = {4, 8}, positions[3] = {5, 6, 7};
  const int32_t bsr_indptr[3] = {0, 1, 3}, bsr_indices[3] = {1, 0, 2}, sizes[2] = {8, 8};
  const uint8_t map[4] = {1, 0, 1, 1}, mask[10] = {1, 0, 1, 0, 0, 0, 0, 9, 1, 0};
  uint8_t bits[2] = {0, 0};
  kvloom_tensor a, la, b, lb, m, ml, k_new, v_new, ck, cv;
  kvloom_append_batch append;
  kvloom_rope rope;
  kvloom_scales scales;
  kvloom_bsr* bsr = NULL;
  kvloom_batch batch;
  int32_t page_size = 0;
  int64_t kv_tokens = 0;
  fill(o_b, kRows * kHeads * kDim, 4);
  fill(lse_b, kRows * kHeads, 5);
  kvloom_tensor_init(&a, o, KVLOOM_F32, 3, kQShape), kvloom_tensor_init(&la, lse, KVLOOM_F32, 2, kLseShape);
  kvloom_tensor_init(&b, o_b, KVLOOM_F32, 3, kQShape), kvloom_tensor_init(&lb, lse_b, KVLOOM_F32, 2, kLseShape);
  kvloom_tensor_init(&m, merged, KVLOOM_F32, 3, kQShape), kvloom_tensor_init(&ml, merged_lse, KVLOOM_F32, 2, kLseShape);
  EXPECT(kvloom_merge_states(&a, &la, &b, &lb, &m, &ml, NULL) == KVLOOM_OK);
  EXPECT(fabsf(merged_lse[0] - logf(expf(lse[0]) + expf(lse_b[0]))) < 1e-5f);
  kvloom_tensor_init(&a, o_b, KVLOOM_F32, 4, states), kvloom_tensor_init(&la, lse_b, KVLOOM_F32, 3, state_lse);
  kvloom_tensor_init(&m, merged, KVLOOM_F32, 3, one), kvloom_tensor_init(&ml, merged_lse, KVLOOM_F32, 2, one_lse);
  EXPECT(kvloom_merge_states_n(&a, &la, &m, &ml, NULL) == KVLOOM_OK);
  EXPECT(fabsf(merged_lse[0] - logf(expf(lse_b[0]) + expf(lse_b[4]) + expf(lse_b[8]))) < 1e-5f);
  EXPECT(kvloom_merge_states_ragged(&b, &lb, indices(indptr, 2), &m, NULL, NULL) == KVLOOM_OK);
  EXPECT(kvloom_merge_states(&a, NULL, &b, &lb, &m, &ml, NULL) == KVLOOM_INVALID_ARGUMENT);

  kvloom_append_batch_init(&append, sizeof append);
  append.num_tokens = 2;
  append.num_requests = 2;
  append.request = request, append.pos = pos;
  append.list_indptr = indices(kListIndptr, 3), append.pages = indices(kPageIds, 5);
  kvloom_tensor_init(&k_new, q, KVLOOM_F32, 3, new_shape), kvloom_tensor_init(&v_new, q, KVLOOM_F32, 3, new_shape);
  kvloom_tensor_init(&ck, cache_k, KVLOOM_F32, 4, kCacheShape), kvloom_tensor_init(&cv, cache_v, KVLOOM_F32, 4, kCacheShape);
  kvloom_rope_init(&rope, sizeof rope);
  kvloom_scales_init(&scales, sizeof scales);
  EXPECT(kvloom_append_kv(&k_new, &v_new, &append, &ck, &cv, KVLOOM_NHD, kPageSize, &rope, &scales, NULL) == KVLOOM_OK);
  EXPECT(memcmp(cache_k + (kPageIds[4] * kPageSize + 0) * kKvHeads * kDim, q, kKvHeads * kDim * sizeof(float)) == 0);
  EXPECT(memcmp(cache_v + (kPageIds[2] * kPageSize + 0) * kKvHeads * kDim, q + kKvHeads * kDim, kKvHeads * kDim * sizeof(float)) == 0);
  scales.k = 2.0f;
  EXPECT(kvloom_append_kv(&k_new, &v_new, &append, &ck, &cv, KVLOOM_NHD, kPageSize, NULL, &scales, NULL) == KVLOOM_INVALID_ARGUMENT);
  EXPECT(kvloom_apply_rope(&b, positions, &rope, NULL) == KVLOOM_INVALID_ARGUMENT);
  rope.mode = KVLOOM_ROPE_HALF_SPLIT;
  EXPECT(kvloom_apply_rope(&b, positions, &rope, NULL) == KVLOOM_OK);

  EXPECT(kvloom_bsr_create(2, 4, 8, 3, indices(bsr_indptr, 3), indices(bsr_indices, 3), &bsr) == KVLOOM_OK);
  kvloom_batch_init(&batch, sizeof batch);
  EXPECT(kvloom_bsr_batch(bsr, &batch, &page_size, &kv_tokens) == KVLOOM_OK && page_size == 8 && kv_tokens == 24 &&
         batch.num_requests == 2);
  kvloom_bsr_destroy(bsr);
  bsr = NULL;
  EXPECT(kvloom_variable_bsr_create(sizes, 2, sizes, 2, map, 0, &bsr) == KVLOOM_OK);
  EXPECT(kvloom_bsr_batch(bsr, &batch, &page_size, NULL) == KVLOOM_OK && page_size == 8);
  kvloom_bsr_destroy(bsr);
  EXPECT(kvloom_pack_mask(mask, 2, 5, bits, 2) == KVLOOM_OK && bits[0] == 0x85 && bits[1] == 0x01);
  EXPECT(kvloom_pack_mask(mask, 2, 5, bits, 3) == KVLOOM_INVALID_ARGUMENT);
  return 0;
}

int kvloom_c_smoke(void);
int kvloom_c_smoke(void) {
  int line;
  fill(q, sizeof q / sizeof q[0], 1);
  fill(k, sizeof k / sizeof k[0], 2);
  fill(v, sizeof v / sizeof v[0], 3);
  if ((line = engine_plan_run()) != 0) return line;
  if ((line = failures()) != 0) return line;
  if ((line = other_headers()) != 0) return line;
  return operations();
}
