/* kvloom in C, beside kvloom.h: steps whose lengths stay on the GPU. Compiles as C99 and as C++.
 *
 *   kvloom_device_batch step;  kvloom_device_batch_init(&step, sizeof step);     arrays in the GPU's memory, sizes of the host
 *   kvloom_plan_device_create(engine, &step, stream, &plan);                     once: allocates, loads, plans
 *   begin capture of `stream`
 *   kvloom_plan_device_update(engine, plan, &step, stream);                      one small kernel
 *   kvloom_run(engine, plan, &tensors, stream);                                  for every layer
 *   end capture; replay for every step with these sizes, whatever its lengths
 *
 * The engine is on a GPU and its policy is KVLOOM_STREAM; flat batches, no custom mask. Status, memory and threads: as kvloom.h says.
 */
#ifndef KVLOOM_KVLOOM_DEVICE_PLAN_H
#define KVLOOM_KVLOOM_DEVICE_PLAN_H

#include "kvloom/api/kvloom.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Ragged, CSR, dense and per head as in kvloom_batch. A step that is padded gives the padded numbers: a request of no query tokens is none, and rows of Q
 * behind qo_indptr[num_requests] are not touched. Defaults: all absent. */
typedef struct kvloom_device_batch {
  uint32_t struct_size;
  int32_t num_requests;
  int64_t num_tokens;         /* rows of Q and O in every run of the plan: at least qo_indptr[num_requests] */
  int32_t max_q_len;          /* most query tokens of a request: decides which kernel runs the step */
  int32_t kv_position;        /* KVLOOM_POSITION_ */
  int32_t lists_per_kv_head;  /* a list a (request, KV head), at r * num_kv_heads + h; else lists are requests */
  kvloom_indices qo_indptr;   /* [num_requests + 1] rows of Q */
  kvloom_indices kv_len;      /* [lists] tokens, the step's own included; with q_pos0 and a causal spec an upper bound will do */
  kvloom_indices list_indptr; /* [lists] or [lists + 1] */
  kvloom_indices pages;       /* page ids, not read by the planner; ragged: none */
  int64_t table_stride;       /* > 0: pages is a block table [lists, table_stride], and there is no list_indptr */
  int64_t kv_tokens;          /* ragged: tokens that K and V have */
  const int32_t* q_pos0;      /* [num_requests] position of a request's first query token; NULL: kv_len - q_len */
  const int32_t* prefix;      /* [num_requests] keys at kv_pos < prefix are kept whatever the window says; NULL: 0 */
} kvloom_device_batch;
void kvloom_device_batch_init(kvloom_device_batch* batch, size_t struct_size);

/* Puts the planning of a step into `stream` and returns: nothing is read on the host, nothing waited for. kvloom_plan_graph_key is known at once.
 * What arrays hold is judged on the device: of a batch that can't be planned kvloom_run makes every row of O and LSE NaN, and kvloom_plan_check says
 * why. Errors: INVALID_ARGUMENT (a size or an address, named), OVER_CAPACITY (requests or rows), UNSUPPORTED (with the remedy), MISMATCH. */
kvloom_status kvloom_plan_device_create(kvloom_engine* engine, const kvloom_device_batch* batch, void* stream, kvloom_plan** plan);
/* Another step into the same handle, whose device memory stays where it is. May be captured once the handle was planned into on a device. */
kvloom_status kvloom_plan_device_update(kvloom_engine* engine, kvloom_plan* plan, const kvloom_device_batch* batch, void* stream);

/* Waits for `stream` and copies the plan that the device has made: kvloom_plan_bytes, _explain, _json and _svg show it from then on, and before it
 * fail. Errors: what kvloom_plan_create would have said of the lengths, INVALID_ARGUMENT or OVER_CAPACITY. Of other plans it does nothing. */
kvloom_status kvloom_plan_check(kvloom_engine* engine, kvloom_plan* plan, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* KVLOOM_KVLOOM_DEVICE_PLAN_H */
