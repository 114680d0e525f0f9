/* kvloom in C: attention for LLM serving, over a binary interface that any language can call. Compiles as C99 and as C++.
 *
 *   kvloom_spec spec;        kvloom_spec_init(&spec, sizeof spec);             what stays fixed: heads, dims, types, variant
 *   kvloom_capacity cap;     kvloom_capacity_init(&cap, sizeof cap);           the largest step that will ever be planned
 *   kvloom_engine* engine;   kvloom_engine_create(&spec, &cap, NULL, NULL, 0, &engine);
 *   kvloom_plan* plan;       kvloom_plan_create(engine, &batch, &plan);        once a step: lengths and page tables, host memory
 *                            kvloom_run(engine, plan, &tensors, NULL);         once a layer
 *                            kvloom_plan_update(engine, plan, &next_batch);    the next step
 *
 * STATUS   Every function that can fail returns a kvloom_status; KVLOOM_OK is 0. kvloom_last_error() then says, in one line, where, what
 *          was got, what was wanted and what to do (UNSUPPORTED: a line more for each kernel that was considered). Fields have the names
 *          of the C++ structs: "spec.variant.range.left" is window_left, "Capacity" is kvloom_capacity. After an error nothing was
 *          written through any output pointer. Exceptions never leave the library.
 *
 * MEMORY   The caller owns every tensor, index array and workspace. Handles are destroyed by their _destroy function; strings handed out
 *          through char** are freed by kvloom_string_free. NULL is allowed in every _destroy and _free.
 *
 * THREADS  An engine is for one thread at a time; distinct engines are independent. A plan may be read and destroyed on any thread and
 *          may outlive its engine. The operations on tensors (merge, append, rope) may be called from any thread.
 *
 * ABI      Structs that may grow begin with struct_size = sizeof of the caller's header, and have an _init function that sets it and the
 *          defaults. A library reads what the caller's size covers and takes defaults for the rest; fields of a newer header that an
 *          older library does not know must be zero, else the call is refused. kvloom_tensor, kvloom_indices, kvloom_level_group and
 *          kvloom_param never change within one KVLOOM_ABI. Numbers of enumerators never change.
 *
 * NUMBERS  Lengths, positions and strides count tokens and elements, sizes count bytes; LSE is the natural logarithm of the softmax
 *          denominator. The mathematics is kvloom/attn/state.h (states and their merge), kvloom/attn/mask.h (which keys a row keeps) and
 *          kvloom/contract/variant.h (order of scale, ALiBi, soft cap, mask, sink; RoPE).
 */
#ifndef KVLOOM_KVLOOM_H
#define KVLOOM_KVLOOM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVLOOM_VERSION_MAJOR 0
#define KVLOOM_VERSION_MINOR 1
#define KVLOOM_VERSION_PATCH 0
#define KVLOOM_ABI 1 /* raised when a struct or function changes so that old callers would break */

/* ---- status ------------------------------------------------------------------------------------------------------------------------ */

typedef int32_t kvloom_status;
enum {
  KVLOOM_OK = 0,
  KVLOOM_INVALID_ARGUMENT = 1, /* a value, shape, dtype or pointer that can never work */
  KVLOOM_OVER_CAPACITY = 2,    /* valid, but larger than the engine was made for */
  KVLOOM_UNSUPPORTED = 3,      /* no kernel for this combination */
  KVLOOM_OUT_OF_MEMORY = 4,
  KVLOOM_IO = 5,
  KVLOOM_MISMATCH = 6, /* a plan, spec or workspace of another engine */
  KVLOOM_INTERNAL = 7  /* a bug of the library */
};

/* The last failure of the calling thread: "where: what: got X, wanted Y; remedy". "" before the first. Valid until the thread's next
 * failing call. */
const char* kvloom_last_error(void);
const char* kvloom_status_name(kvloom_status status); /* "invalid argument", ... */
const char* kvloom_version(void);                     /* "0.1.0" of the library, not of this header */
int32_t kvloom_abi(void);                             /* KVLOOM_ABI of the library */

/* ---- tensors and index arrays ------------------------------------------------------------------------------------------------------ */

enum { KVLOOM_F32 = 0, KVLOOM_F16 = 1, KVLOOM_BF16 = 2, KVLOOM_E4M3 = 3, KVLOOM_E5M2 = 4 };

/* A strided view of caller-owned memory with the layout of DLPack's DLTensor: a DLTensor* may be passed for it. device_type: CPU (1),
 * pinned host memory (3); for engines on a GPU CUDA (2), pinned (3) or managed (13). dtype codes are DLPack's (float 2, bfloat 4, e4m3fn
 * 10, e5m2 12; lanes 1). strides in elements; NULL: row-major, contiguous. The last dimension must be contiguous. At most 4 dimensions. */
typedef struct kvloom_tensor {
  void* data;
  int32_t device_type;
  int32_t device_id;
  int32_t ndim;
  uint8_t dtype_code;
  uint8_t dtype_bits;
  uint16_t dtype_lanes;
  const int64_t* shape;   /* [ndim] */
  const int64_t* strides; /* [ndim] or NULL */
  uint64_t byte_offset;
} kvloom_tensor;

/* Fills *t: a contiguous CPU tensor of a KVLOOM_ dtype. `shape` is kept by pointer. */
void kvloom_tensor_init(kvloom_tensor* t, void* data, int32_t dtype, int32_t ndim, const int64_t* shape);

/* Integers read in place. data NULL: not given. */
typedef struct kvloom_indices {
  const void* data;
  int64_t size; /* elements */
  int32_t bits; /* 32 or 64 */
} kvloom_indices;

/* ---- what stays fixed -------------------------------------------------------------------------------------------------------------- */

enum { KVLOOM_RAGGED = 0, KVLOOM_PAGED = 1 };
enum { KVLOOM_SOFTMAX = 0, KVLOOM_SUM = 1 };
enum { KVLOOM_ROPE_NONE = 0, KVLOOM_ROPE_INTERLEAVED = 1, KVLOOM_ROPE_HALF_SPLIT = 2 };

/* RoPE: angle(pos, i) = pos * theta^(-2 i / rotary_dim) / scaling; with high_freq_factor > 0 the scaling is Llama 3.1's, by wavelength
 * (kvloom/contract/variant.h, RopeSpec). Defaults: mode none, whole head, theta 10000, scaling 1, original_context 8192. */
typedef struct kvloom_rope {
  uint32_t struct_size;
  int32_t mode;       /* KVLOOM_ROPE_ */
  int32_t rotary_dim; /* even, at most head_dim; 0: the whole head */
  float theta;
  float scaling;
  float low_freq_factor;
  float high_freq_factor;
  float original_context;
} kvloom_rope;

/* A key at kv_pos is kept by a row at q_pos when kv_pos < prefix of its request, or when it is within all of: causal (kv_pos <= q_pos),
 * window_left (kv_pos >= q_pos - window_left: W keeps W + 1 keys), window_right; -1: no bound. logit = sm_scale * q.k, + ALiBi slope *
 * (kv_pos - q_pos), soft cap c: c * tanh(logit / c). A sink adds exp(sink[head]) to the denominator, once. KVLOOM_SUM: the weight of a key
 * is sigmoid(logit + sigmoid_bias), O is the weighted sum, and there is no LSE.
 * Defaults: paged, page_size 16, f32, plain attention, no window. */
typedef struct kvloom_spec {
  uint32_t struct_size;
  int32_t num_qo_heads; /* a multiple of num_kv_heads */
  int32_t num_kv_heads;
  int32_t head_dim_qk; /* CPU: 16 .. 576 */
  int32_t head_dim_vo; /* may differ (MLA: 576 and 512) */
  int32_t q_dtype;     /* KVLOOM_F32 ... */
  int32_t kv_dtype;
  int32_t o_dtype;   /* F32, F16 or BF16 */
  int32_t storage;   /* KVLOOM_RAGGED, KVLOOM_PAGED */
  int32_t page_size; /* tokens; ragged: ignored */
  float sm_scale;    /* 0: 1 / sqrt(head_dim_qk) */
  int32_t causal;    /* nonzero: yes, as all flags */
  int32_t window_left;
  int32_t window_right;
  float soft_cap; /* 0: none */
  int32_t alibi;
  int32_t custom_mask;
  int32_t sink;
  int32_t reduction; /* KVLOOM_SOFTMAX, KVLOOM_SUM */
  float sigmoid_bias;
  const kvloom_rope* rope; /* NULL: none; fused: Q and K are rotated as they are read */
  const char* variant_text; /* a variant of one's own: C++ text with hooks (docs/variants.md); NULL: that of variant_file */
  const char* variant_file; /* with variant_text: its name in messages. Both NULL: none. Read by the call alone */
} kvloom_spec;

/* The worst batch that will ever be planned with the engine; buffers are sized by it. Defaults: 0. */
typedef struct kvloom_capacity {
  uint32_t struct_size;
  int32_t max_requests;
  int64_t max_query_tokens; /* sum of q_len over a step */
  int64_t max_kv_tokens;    /* sum of kv_len over a step; needed by KVLOOM_FIXED_SPLIT alone, 0: not bounded */
  int64_t max_level_rows;   /* query tokens gathered by shared levels (requests that share a prefix: their tokens); 0: no shared levels */
  int32_t max_groups;       /* row groups; 0: derived */
} kvloom_capacity;

/* AUTO: a GPU if there is one that runs the spec, else the CPU; kvloom_engine_backend says which. */
enum { KVLOOM_CPU = 0, KVLOOM_CUDA = 1, KVLOOM_AUTO = 2 };
enum { KVLOOM_NO_SPLIT = 0, KVLOOM_HEAP = 1, KVLOOM_STREAM = 2, KVLOOM_FILL = 3, KVLOOM_FIXED_SPLIT = 4, KVLOOM_AUTOMATIC = 5 };
enum { KVLOOM_LEVELS_OFF = 0, KVLOOM_LEVELS_AUTOMATIC = 1 };

/* Defaults: CPU, all cores, automatic policy and levels, pages and pointers checked, current device. */
typedef struct kvloom_options {
  uint32_t struct_size;
  int32_t backend;        /* KVLOOM_CPU, KVLOOM_CUDA, KVLOOM_AUTO */
  int32_t threads;        /* 0: one a core, shared by all such engines of the process */
  int32_t num_ctas;       /* 0: the backend's own; equal numbers give equal bits; clusters of two where CTAs work so (CUDA, family sm90, many rows) */
  int32_t policy;         /* how work is split (docs/plan_format.md, Policies); FIXED_SPLIT: a request's bits do not depend on its batch */
  int32_t levels;         /* shared prefixes found from the page tables */
  int32_t split_tokens;   /* FIXED_SPLIT: chunk, tokens; 0: the backend's own */
  int32_t check_pages;    /* plan reads every page id that a row can see, and run refuses one out of range */
  const char* cpu_target; /* "avx512", "avx2", "portable"; NULL: the best of this machine */
  int32_t device;         /* CUDA: ordinal; -1: that of the calling thread's current context, else 0 */
  int32_t check_pointers; /* CUDA: ask the driver, once an address, where arrays are: the GPU reads run's, the host plan's */
  const char* cuda_arch;  /* CUDA: "sm_90a": plan and explain for it without a device, run is refused; NULL: the device's */
  const char* kernel;     /* "sm80": this family of kernels and no other; NULL: the fastest that runs the spec */
  int32_t early_launch;   /* CUDA, Hopper and up: a run's kernel may take its place while the work in front of it in the stream ends */
} kvloom_options;

/* Set struct_size and the defaults; `struct_size` is sizeof the caller's struct. NULL is ignored. */
void kvloom_rope_init(kvloom_rope* rope, size_t struct_size);
void kvloom_spec_init(kvloom_spec* spec, size_t struct_size);
void kvloom_capacity_init(kvloom_capacity* capacity, size_t struct_size);
void kvloom_options_init(kvloom_options* options, size_t struct_size);

/* ---- engine ------------------------------------------------------------------------------------------------------------------------ */

typedef struct kvloom_engine kvloom_engine;
typedef struct kvloom_plan kvloom_plan;

/* *bytes = the exact workspace: an engine can be made with so many bytes and not with one fewer. options NULL: defaults.
 * Errors: as kvloom_engine_create. */
kvloom_status kvloom_workspace_size(const kvloom_spec* spec, const kvloom_capacity* capacity, const kvloom_options* options, int64_t* bytes);

/* Makes an engine; on a GPU its kernel is compiled, or found in the cache, now. workspace: 64-byte aligned host memory, or 256-byte aligned device
 * memory, workspace_bytes long, used until the engine is destroyed, contents do not matter, may be shared by engines that never run at once; NULL and 0: the
 * engine's own memory. options NULL: defaults.
 * Errors: INVALID_ARGUMENT (field named; a variant: the compiler's words, with file and line), UNSUPPORTED (every kernel considered, with its
 * reason), OUT_OF_MEMORY, IO (variant_file), MISMATCH (workspace too small: both numbers named). */
kvloom_status kvloom_engine_create(const kvloom_spec* spec, const kvloom_capacity* capacity, const kvloom_options* options, void* workspace,
                                   int64_t workspace_bytes, kvloom_engine** engine);
void kvloom_engine_destroy(kvloom_engine* engine);

/* The key of the kernel that runs it ("attend.cpu-avx2.bf16.d128.paged.causal"), owned by the engine; NULL for NULL. */
const char* kvloom_engine_kernel_key(const kvloom_engine* engine);
int32_t kvloom_engine_backend(const kvloom_engine* engine); /* KVLOOM_CPU or KVLOOM_CUDA; -1 for NULL */
int32_t kvloom_engine_device(const kvloom_engine* engine);  /* ordinal of its GPU; -1 where it has none */
/* Kernels considered and why they were declined, tiles, FLOP a byte, the roof that binds. */
kvloom_status kvloom_engine_explain(const kvloom_engine* engine, char** text);

/* ---- one step ---------------------------------------------------------------------------------------------------------------------- */

/* How a key's position follows from where it stands in its list: counting up; page_pos[entry] + offset; page id * page_size + offset. */
enum { KVLOOM_POSITION_LINEAR = 0, KVLOOM_POSITION_PAGE_TABLE = 1, KVLOOM_POSITION_PAGE_ID = 2 };

/* One row group of an explicit level: query tokens that all attend to one list of KV blocks. */
typedef struct kvloom_level_group {
  int32_t level;    /* levels of a row merge in ascending order */
  int32_t kv_begin; /* tokens of the list that count: [kv_begin, kv_end) */
  int32_t kv_end;
  int32_t kv_pos0;       /* position of list token 0 */
  int32_t kv_index0;     /* custom mask column of list token 0 */
  int32_t kv_head;       /* -1: all */
  int64_t list_begin;    /* first entry of the list in `pages` (ragged: first token) */
  const int32_t* tokens; /* rows of Q, any order */
  int64_t num_tokens;
} kvloom_level_group;

/* Host memory, read by plan only (the page ids must stay where run finds them). Defaults: all absent.
 * ragged:     list_indptr[r] is the first token of request r, kv_len[r] how many; no pages
 * CSR:        list_indptr[r] is the first entry of `pages` for request r; page i of the list holds tokens [i * page_size, ...)
 * dense:      pages is a block table [num_requests, table_stride]; no list_indptr; entries behind kv_len are never read
 * per head:   lists_per_kv_head: list and kv_len of (request r, KV head h) at r * num_kv_heads + h */
typedef struct kvloom_batch {
  uint32_t struct_size;
  int32_t num_requests;
  kvloom_indices qo_indptr;   /* [num_requests + 1] rows of Q */
  kvloom_indices kv_len;      /* [lists] tokens, the step's own included */
  kvloom_indices list_indptr; /* [lists] or [lists + 1] */
  kvloom_indices pages;
  int64_t table_stride;
  int32_t lists_per_kv_head;
  int32_t kv_position;              /* KVLOOM_POSITION_ */
  const int32_t* q_pos0;            /* [num_requests] position of a request's first query token; NULL: kv_len - q_len */
  const int32_t* q_pos;             /* [query tokens] positions one by one (tree drafts); NULL: counting up from q_pos0 */
  const int32_t* prefix;            /* [num_requests] keys at kv_pos < prefix are kept whatever the window says; NULL: 0 */
  const kvloom_level_group* groups; /* explicit levels instead of the lists; NULL: flat, or found from the page tables */
  int64_t num_groups;
} kvloom_batch;
void kvloom_batch_init(kvloom_batch* batch, size_t struct_size);

/* Plans a step. Errors: INVALID_ARGUMENT (request and value named), OVER_CAPACITY. Empty batches, q_len 0 and kv_len 0 are valid. */
kvloom_status kvloom_plan_create(kvloom_engine* engine, const kvloom_batch* batch, kvloom_plan** plan);
/* Plans another step into the same handle, whose device memory stays where it is (captured graphs read it); allocates nothing once two
 * steps were planned. After an error the old step is still there. */
kvloom_status kvloom_plan_update(kvloom_engine* engine, kvloom_plan* plan, const kvloom_batch* batch);
void kvloom_plan_destroy(kvloom_plan* plan);
/* CUDA: starts the step's one copy to the device, in `stream`; run does it where this was not called. A captured graph holds launches
 * alone: call it before the capture begins and, after every update, before the replay, with the replay's stream. CPU: does nothing. */
kvloom_status kvloom_plan_upload(kvloom_engine* engine, kvloom_plan* plan, void* stream);

/* The plan's bytes (docs/plan_format.md), owned by the plan: equal input gives equal bytes on every machine. */
kvloom_status kvloom_plan_bytes(const kvloom_plan* plan, const void** data, int64_t* size);
kvloom_status kvloom_plan_graph_key(const kvloom_plan* plan, uint64_t* key); /* what a captured graph must match */
/* The schedule as text, as JSON, and as an SVG picture with a lane a CTA. */
kvloom_status kvloom_plan_explain(const kvloom_plan* plan, char** text);
kvloom_status kvloom_plan_json(const kvloom_plan* plan, char** json);
kvloom_status kvloom_plan_svg(const kvloom_plan* plan, char** svg);
void kvloom_string_free(char* string);

enum { KVLOOM_NHD = 0, KVLOOM_HND = 1 };

/* Scales of fp8 tensors: real value = stored value * scale; finite, above 0. Defaults: 1. A scale for a tensor that is not fp8 is
 * refused. */
typedef struct kvloom_scales {
  uint32_t struct_size;
  float q;
  float k;
  float v;
  const float* k_per_head; /* [num_kv_heads], replaces k; NULL: none */
  const float* v_per_head;
} kvloom_scales;
void kvloom_scales_init(kvloom_scales* scales, size_t struct_size);

/* A value for a parameter of the spec's variant. */
typedef struct kvloom_param {
  const char* name;
  const kvloom_tensor* tensor; /* float32, int32, int64 or uint8, any strides, where the engine runs, read in place; NULL: a number */
  double number;
} kvloom_param;

/* The tensors of one layer. Arrays that the spec's variant does not use must be NULL. Defaults: all absent, NHD. */
typedef struct kvloom_run_tensors {
  uint32_t struct_size;
  int32_t layout;             /* KVLOOM_NHD, KVLOOM_HND */
  const kvloom_tensor* q;     /* [tokens, num_qo_heads, head_dim_qk], q_dtype; exactly the plan's query tokens */
  const kvloom_tensor* k;     /* paged NHD [pages, page_size, num_kv_heads, head_dim_qk], HND [pages, num_kv_heads, page_size, ..];
                                 page_size 1 also [slots, num_kv_heads, ..]; ragged [tokens, num_kv_heads, ..] or [num_kv_heads, tokens, ..] */
  const kvloom_tensor* v;     /* as k, last dimension head_dim_vo; may lie within k (MLA) */
  const kvloom_tensor* o;     /* [tokens, num_qo_heads, head_dim_vo], o_dtype; shares memory with no input */
  const kvloom_tensor* lse;   /* fp32 [tokens, num_qo_heads], any strides; NULL: not wanted */
  kvloom_indices pages;       /* the ids that the plan was made from; not given: read where the batch had them */
  const int32_t* page_pos;    /* KVLOOM_POSITION_PAGE_TABLE: position of each entry's first slot, parallel to pages */
  const float* alibi_slopes;  /* [num_qo_heads] */
  const float* sink;          /* [num_qo_heads] logits */
  const uint8_t* mask;        /* bit q_index * kv_len + kv_index of a request's bytes, little bit order, 1 = keep */
  const int64_t* mask_indptr; /* [num_requests + 1] bytes */
  const kvloom_scales* scale; /* NULL: all 1 */
  int32_t bare_state;         /* leave the sink (a variant's finish) out of O and LSE: the caller merges states and applies it once */
  const kvloom_param* params; /* one for every parameter of the spec's variant, in any order; NULL: none */
  int64_t num_params;
} kvloom_run_tensors;
void kvloom_run_tensors_init(kvloom_run_tensors* tensors, size_t struct_size);

/* Attention of all query tokens of the plan. CPU: returns when O and LSE are written; stream is NULL. CUDA: puts the launch into
 * `stream` (a cudaStream_t or CUstream; NULL: the default stream) and returns; every array is in device memory; may be captured. Runs of
 * one engine are put in order whatever their streams. A row that keeps nothing gives O = 0, LSE = -inf (with a sink LSE = sink). Errors:
 * INVALID_ARGUMENT (tensor and field named), MISMATCH (plan of another engine). */
kvloom_status kvloom_run(kvloom_engine* engine, const kvloom_plan* plan, const kvloom_run_tensors* tensors, void* stream);

/* One call for one step: makes an engine of the batch's size, plans and runs; returns when done. options NULL: defaults. */
kvloom_status kvloom_attention(const kvloom_spec* spec, const kvloom_batch* batch, const kvloom_run_tensors* tensors,
                               const kvloom_options* options);

/* ---- around attention -------------------------------------------------------------------------------------------------------------- */

/* Where an operation runs; a NULL pointer: on the CPU. CUDA: every array is in the GPU's memory, the call puts one launch into `stream` and
 * returns, allocates nothing and may be captured (kvloom_load_ops before); what arrays hold is read there and not checked, except that no
 * slot outside the cache is written. Defaults: CPU, current device, pointers checked. */
typedef struct kvloom_op_options {
  uint32_t struct_size;
  int32_t backend;        /* KVLOOM_CPU, KVLOOM_CUDA */
  int32_t device;         /* CUDA: ordinal; -1: that of the calling thread's current context, else 0 */
  int32_t check_pointers; /* CUDA: ask the driver, once an address, whether each array is where this GPU can read it */
  void* stream;           /* CUDA: a cudaStream_t or CUstream; NULL: the default stream */
} kvloom_op_options;
void kvloom_op_options_init(kvloom_op_options* options, size_t struct_size);
/* Compiles and loads the GPU kernels of these operations; else the first call does. device -1: as above. */
kvloom_status kvloom_load_ops(int32_t device);
/* Returns when all in `stream` is done: for callers whose framework works in no stream that it names (JAX). Errors: those of kernels in it. */
kvloom_status kvloom_wait_for_stream(int32_t device, void* stream);

/* Merge of states, row by row: LSE = log(e^a + e^b), O = (e^a O_a + e^b O_b) / (e^a + e^b); (0, -inf) is the identity, +-inf marks an empty
 * state whatever its O. o*: [rows, heads, dim] f32, f16 or bf16; lse*: fp32 [rows, heads], any strides. lse NULL: not wanted. Outputs may
 * be the inputs of one side. Errors: INVALID_ARGUMENT. */
kvloom_status kvloom_merge_states(const kvloom_tensor* o_a, const kvloom_tensor* lse_a, const kvloom_tensor* o_b, const kvloom_tensor* lse_b,
                                  const kvloom_tensor* o, const kvloom_tensor* lse, const kvloom_op_options* where);
/* o_in [rows, states, heads, dim], lse_in [rows, states, heads]. */
kvloom_status kvloom_merge_states_n(const kvloom_tensor* o_in, const kvloom_tensor* lse_in, const kvloom_tensor* o,
                                    const kvloom_tensor* lse, const kvloom_op_options* where);
/* Row r merges rows [indptr[r], indptr[r + 1]) of o_in [total, heads, dim], lse_in [total, heads]. */
kvloom_status kvloom_merge_states_ragged(const kvloom_tensor* o_in, const kvloom_tensor* lse_in, kvloom_indices indptr,
                                         const kvloom_tensor* o, const kvloom_tensor* lse, const kvloom_op_options* where);

/* Where new tokens go: token i is token pos[i] of the list of request[i]. On a GPU slots says it instead, and nothing else is read but
 * rope_pos (with RoPE). Defaults: all absent. */
typedef struct kvloom_append_batch {
  uint32_t struct_size;
  int32_t num_requests;
  int64_t num_tokens;
  const int32_t* request;  /* [num_tokens]; -1: padding, skipped */
  const int32_t* pos;      /* [num_tokens] */
  const int32_t* rope_pos; /* [num_tokens]; NULL: pos */
  kvloom_indices list_indptr;
  kvloom_indices pages;
  int64_t table_stride; /* > 0: pages is a dense block table */
  const int64_t* slots; /* [num_tokens] page * page_size + slot in the page, -1: skipped; in the place of request, pos and pages */
} kvloom_append_batch;
void kvloom_append_batch_init(kvloom_append_batch* batch, size_t struct_size);
/* slots [num_tokens] of a batch given by request, pos and pages: on the host, checked as kvloom_append_kv checks them. */
kvloom_status kvloom_append_slots(const kvloom_append_batch* batch, int32_t page_size, int64_t num_pages, int64_t* slots);

/* k_new [num_tokens, heads, dim_qk], v_new [num_tokens, heads, dim_vo] (f32, f16, bf16) into the pages of k and v (as kvloom_run wants
 * them); fp8 pages hold value / scale. v_new and v may both be NULL. rope NULL or none: keys as they are. scale NULL: 1.
 * Errors: INVALID_ARGUMENT (token and page named); nothing is written then. */
kvloom_status kvloom_append_kv(const kvloom_tensor* k_new, const kvloom_tensor* v_new, const kvloom_append_batch* batch,
                               const kvloom_tensor* k, const kvloom_tensor* v, int32_t layout, int32_t page_size, const kvloom_rope* rope,
                               const kvloom_scales* scale, const kvloom_op_options* where);
/* Rotates x [tokens, heads, dim] in place; token i stands at pos[i]. */
kvloom_status kvloom_apply_rope(const kvloom_tensor* x, const int32_t* pos, const kvloom_rope* rope, const kvloom_op_options* where);

/* Block-sparse matrices as batches (kvloom/api/ops.h: bsr_batch, variable_bsr_batch). The handle owns the arrays of its batch. */
typedef struct kvloom_bsr kvloom_bsr;
kvloom_status kvloom_bsr_create(int32_t num_block_rows, int32_t rows_per_block, int32_t cols_per_block, int32_t num_block_cols,
                                kvloom_indices indptr, kvloom_indices indices, kvloom_bsr** bsr);
/* map [block rows, block cols], nonzero = present. num_kv_heads 0: one matrix for all heads; else every array has a leading dimension of
 * num_kv_heads. num_block_rows, num_block_cols: of one head. */
kvloom_status kvloom_variable_bsr_create(const int32_t* block_rows, int64_t num_block_rows, const int32_t* block_cols,
                                         int64_t num_block_cols, const uint8_t* map, int32_t num_kv_heads, kvloom_bsr** bsr);
/* *batch (initialised by the caller) is filled; *page_size is what the spec must say. kv_tokens may be NULL: the sum of kv_len. */
kvloom_status kvloom_bsr_batch(const kvloom_bsr* bsr, kvloom_batch* batch, int32_t* page_size, int64_t* kv_tokens);
void kvloom_bsr_destroy(kvloom_bsr* bsr);

/* mask [rows, columns] bytes, nonzero = keep, into bits [(rows * columns + 7) / 8]: a request's packed mask. INVALID_ARGUMENT: another bits_size. */
kvloom_status kvloom_pack_mask(const uint8_t* mask, int64_t rows, int64_t columns, uint8_t* bits, int64_t bits_size);

#ifdef __cplusplus
}
#endif

#endif /* KVLOOM_KVLOOM_H */
