// Docstrings of Engine and Plan.
#pragma once

namespace kvloom::python::docs {

constexpr const char* kEngine = "Attention of one spec; kvloom.Engine is made of it.";

constexpr const char* kPlan =
    "One step's schedule, made by Engine.plan: good for any number of runs (layers) of its engine, until the engine plans the next step "
    "into "
    "it. May outlive the engine's name; page ids given to plan are kept.";

constexpr const char* kUpload =
    R"(Starts the step's one copy to the GPU, in `stream` (None: the default stream); run does it where this was not called. A CUDA graph holds
launches alone: call it before the capture and, after every replan, before the replay. On the CPU it does nothing.)";

constexpr const char* kPlanStep =
    R"(Plans a step. All arrays are on the host: int32 or int64 arrays, or lists.

kv_len       [requests] tokens in the cache, the step's own included
qo_indptr    [requests + 1] request r has rows qo_indptr[r] .. qo_indptr[r + 1] of q; None: one query token a request (decode)
block_table  [requests, entries] page ids, a row a request (or a list of lists of one length); entries behind kv_len are never read; on a GPU with
             check_pages=False and without shared levels the ids may lie there. Or
pages, list_indptr   [page ids], [requests] or [requests + 1]: request r's ids begin at list_indptr[r]; without pages (page_size None):
             list_indptr[r] is the first token of request r in k and v
q_pos0       [requests] position of a request's first query token; None: kv_len - q_len
q_pos        [query tokens] positions one by one (tree drafts)
prefix       [requests] keys at kv_pos < prefix are kept whatever the window says
groups       LevelGroups: explicit levels, instead of the lists (qo_indptr and kv_len are given as well)
lists_per_kv_head   a list and a kv_len for every (request, KV head)
kv_position  "linear": a key's position counts up along its list; "page_table": page_pos[entry] + offset, an array given to run;
             "page_id": page id * page_size + offset

Raises ValueError (request and value named), CapacityError. Empty batches, q_len 0 and kv_len 0 are valid.)";

constexpr const char* kReplan =
    R"(Plans another step into `plan`, whose device memory stays where it is (captured CUDA graphs read it). Arguments as plan's. After an error
the old step is still there.)";

constexpr const char* kPlanOnDevice =
    R"(Plans a step whose lengths stay on the GPU: puts one small kernel into the stream, reads nothing on the host, waits for nothing. The engine has
policy="stream" and no custom mask. Arrays are on the engine's GPU, contiguous, read when the stream gets there:

kv_len       int32 or int64 [requests] tokens in the cache, the step's own included; with q_pos0 and a causal Spec an upper bound will do
qo_indptr    int32 or int64 [requests + 1]; a request of no query tokens is none. None: one query token a request (decode)
block_table  int32 or int64 [requests, entries] page ids, a row a request, at least as many entries as kv_len wants. Or
pages, list_indptr   int32 or int64 [page ids], [requests] or [requests + 1], as plan's; without pages (page_size None) list_indptr alone
q_pos0       int32 [requests] position of a request's first query token; None: kv_len - q_len
prefix       int32 [requests] keys at kv_pos < prefix are kept whatever the window says
lists_per_kv_head, kv_position   as plan's

and sizes of the host, which a captured graph keeps:

num_tokens   rows of q and out in every run, at least qo_indptr[requests]: rows behind that are not touched; needed beside qo_indptr
max_q_len    most query tokens of a request, which decides the kernel that runs; needed beside qo_indptr
kv_tokens    tokens of k and v, without pages
stream       an address, or a stream of torch or CuPy; None: the current stream of kv_len's framework

Arrays are kept until the next step is planned into the plan. What they hold is judged on the device: of a step that can't be planned (negative
lengths, an indptr that decreases, a list too short, more than was declared) run makes every row of out and lse NaN, and check says why. Page ids
are not checked. explain, json, svg and bytes want check first; graph_key is known at once. A graph: plan once outside of it, then replan_on_device and
the runs inside. Raises TypeError and ValueError (the argument is named), CapacityError, UnsupportedError (with the remedy).)";

constexpr const char* kReplanOnDevice =
    R"(Plans another step into `plan`, whose device memory stays where it is, as plan_on_device does; may be captured in a CUDA graph once the plan
was planned into outside of it. The graph then reads the arrays given here at every replay. After an error the old step is still there.)";

constexpr const char* kCheck =
    R"(Waits for `stream` (None: the current stream of the framework that kv_len is of) and copies the step that the device has planned, which
explain, json, svg and bytes then show. Raises what plan would have of its lengths: ValueError or CapacityError, with the array, the request and the
value. Of a plan made by plan it does nothing. Not under capture.)";

constexpr const char* kPlanSparse =
    "Plans a block-sparse matrix (BlockSparse); the Spec's page_size is matrix.page_size, k and v are matrix.as_pages(k), "
    "matrix.as_pages(v).";

constexpr const char* kRun =
    R"(Attention of all query tokens of the plan. Returns out, or (out, lse) where an LSE is wanted.

q            [tokens, num_qo_heads, head_dim], exactly the plan's query tokens
k, v         [pages, page_size, num_kv_heads, head_dim] (layout "HND": [pages, num_kv_heads, page_size, head_dim]); without pages
             [tokens, num_kv_heads, head_dim] (HND: heads first). Any strides with a contiguous head_dim, each its own; v may lie within k
out          [tokens, num_qo_heads, head_dim_vo]; lse fp32 [tokens, num_qo_heads], natural log. Made in q's framework if not given;
             return_lse=True asks for an LSE
pages        the ids that the plan was made from, where the engine runs: needed on a GPU; else the plan's own are read
page_pos     int32 [page ids], with kv_position "page_table"
alibi_slopes, sink   float32 [num_qo_heads], where the spec has them
mask, mask_indptr    uint8 bits, int64 [requests + 1] (kvloom.pack_mask)
q_scale, k_scale, v_scale   of fp8 tensors: real value = stored value * scale; k's and v's may be float32 [num_kv_heads]
bare_state   leave the sink (a variant's finish) out: states to merge
params       a dict of the variant's parameters: numbers or arrays
stream       GPU: an address, or a stream of torch or CuPy; None: the framework's current stream

CPU: returns when out and lse are written. GPU: puts the launch into the stream and returns; may be captured. A row that keeps no key gives
out = 0, lse = -inf. After an error nothing was written.)";

}  // namespace kvloom::python::docs
