// kvloom for C++: describe a kind of attention once (Engine), plan each step (Plan), run it for every layer.
//
//   kvloom::Engine engine(spec, capacity);
//   kvloom::Plan plan = engine.plan(batch);     // once a step: lengths and page tables, host memory
//   engine.run(plan, tensors);                  // once a layer
//
// On a GPU (options.backend = Backend::cuda) every tensor of a run is in its memory, run() only puts work into the caller's stream, and the
// step's lengths stay on the host: plan() needs no device. docs/cuda.md: streams, CUDA graphs, several GPUs.
//
// The caller owns every tensor. Errors are thrown as kvloom::Error (support/error.h); after an error nothing was written to the outputs
// unless the message says so. An Engine is for one thread at a time; distinct engines are independent.
#pragma once

#include "kvloom/api/user_variant.h"
#include "kvloom/contract/backend.h"
#include "kvloom/contract/batch.h"
#include "kvloom/contract/device_batch.h"
#include "kvloom/contract/params.h"
#include "kvloom/contract/plan_format.h"
#include "kvloom/contract/spec.h"
#include "kvloom/contract/timeline.h"
#include "kvloom/plan/scheduler_config.h"
#include "kvloom/support/error.h"

#include <memory>
#include <string>

namespace kvloom {

/// A strided view of caller-owned memory, shaped like a DLTensor. Strides are in elements; the last dimension must be contiguous.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  int32_t ndim = 0;
  int64_t shape[4] = {0, 0, 0, 0};
  int64_t stride[4] = {0, 0, 0, 0};
  int32_t device_type = 0;  // DLPack's: 1 CPU, 2 CUDA, 3 page-locked, 13 managed; 0: not said

  bool given() const { return ndim > 0; }
  /// Contiguous, row-major.
  static Tensor dense(const void* data, DType dtype, std::initializer_list<int64_t> shape);
};

/// Order of the middle dimensions of K and V. nhd: [pages, page_size, heads, dim] (ragged [tokens, heads, dim]);
/// hnd: [pages, heads, page_size, dim] (ragged [heads, tokens, dim]).
enum class KvLayout : int32_t { nhd = 0, hnd = 1 };

/// The tensors of one run, all on the engine's device.
struct RunTensors {
  Tensor q;    // [tokens, num_qo_heads, head_dim_qk], spec.q_dtype; exactly the plan's query tokens
  Tensor k;    // spec.kv_dtype, `layout`; last dim head_dim_qk
  Tensor v;    // last dim head_dim_vo; may overlap k (MLA)
  Tensor o;    // [tokens, num_qo_heads, head_dim_vo], spec.o_dtype
  Tensor lse;  // optional fp32 [tokens, num_qo_heads], natural log
  KvLayout layout = KvLayout::nhd;
  IndexView pages;                       // the page ids the plan was made from (not given: ragged, or host ids kept by the plan's caller)
  const int32_t* page_pos = nullptr;     // KvPosition::page_table
  const float* alibi_slopes = nullptr;   // [num_qo_heads], required with variant.alibi
  const float* sink = nullptr;           // [num_qo_heads], required with variant.sink
  const uint8_t* mask = nullptr;         // packed bits, required with variant.custom_mask
  const int64_t* mask_indptr = nullptr;  // [num_requests + 1] byte offsets into mask; request r has exactly ceil(q_len * kv_len / 8) bytes
  Span<const VariantParam> params;       // one for every parameter of spec.variant.user, in any order
  ScaleParams scale;                     // a k/v scale other than 1 with a 16- or 32-bit cache is refused
  bool bare_state = false;               // leave the sink, or the user's finish, out of O and LSE
  void* timeline = nullptr;              // options.timeline: timeline_layout(plan).bytes() of zeros, where run() writes when items began and ended
};

struct EngineOptions {
  Backend backend = Backend::cpu;
  int32_t threads = 0;                // 0: one a core; all such engines of a process share those threads and take turns
  int32_t num_ctas = 0;               // 0: the backend's own number; the same number gives the same bits on any machine. Clusters of two where CTAs work so (cuda, family sm90, many rows)
  Policy policy = Policy::automatic;  // how work is split: docs/plan_format.md, Policies
  LevelMode levels = LevelMode::automatic;
  int32_t split_tokens = 0;          // fixed_split: chunk length, tokens; 0 is the backend's own
  const char* cpu_target = nullptr;  // "avx512", "avx2", "portable"; nullptr: the best there is, or $KVLOOM_CPU_TARGET
  int32_t device = -1;               // cuda: ordinal; -1: that of the calling thread's current context, else 0
  const char* kernel = nullptr;      // "sm80": this family of kernels and no other; nullptr: the fastest that runs the spec
  const char* cuda_arch = nullptr;   // cuda: "sm_90a": plan and explain for this architecture without a device; run() is then refused
  bool check_pointers =
      true;                 // cuda: ask the driver, once an address, whether run()'s tensors are where the GPU can read them, plan()'s not
  bool check_pages = true;  // plan() reads every page id a row can see, so that run() can refuse one that is out of range; false, and no
                            // search for shared prefixes (levels, Capacity::max_level_rows): ids may lie on the device
  bool early_launch = true;  // cuda, Hopper and up: a run's kernel may take its place while the work in front of it in the stream ends
  bool timeline = false;     // runs can say when each item began and ended (RunTensors::timeline). cuda: kernels of their own, a little slower
};

/// Memory for partial results, of the device that the engine runs on. Not given: the engine allocates its own.
struct Workspace {
  void* data = nullptr;  // 64-byte aligned (cuda: 256)
  int64_t bytes = 0;
};

class Engine;

namespace api {
struct PlanState;
struct EngineState;
}  // namespace api

/// One step's schedule. Valid for the engine that made it, for any number of runs (layers), until destroyed. May outlive the engine, and
/// be read or destroyed on any thread. Its memory goes back to the engine, so planning step after step does not allocate.
class Plan {
 public:
  Plan(Plan&&) noexcept;
  Plan& operator=(Plan&&) noexcept;
  ~Plan();

  PlanView view() const;
  /// The plan buffer's bytes: equal input gives equal bytes.
  Span<const char> bytes() const;
  /// What a captured graph must match to be replayed with this plan: the plan's own `graph_key` and, on a GPU, which kernel runs it.
  uint64_t graph_key() const;
  /// The key of the kernel that runs it: what a result row carries.
  const std::string& kernel_key() const;
  /// Query tokens of the step: the rows that run() wants of Q and O.
  int64_t total_tokens() const;
  /// The step as text, as JSON and as a picture with a lane a CTA.
  std::string explain() const;
  std::string json() const;
  std::string svg() const;

 private:
  friend class Engine;
  explicit Plan(std::unique_ptr<api::PlanState> state);
  const api::PlanState& state() const;
  std::unique_ptr<api::PlanState> state_;
};

class Engine {
 public:
  /// Throws invalid_argument (a spec or capacity that can't be, named), unsupported, out_of_memory, or mismatch (a workspace smaller than
  /// workspace_size(): both numbers named).
  Engine(const AttentionSpec& spec, const Capacity& capacity, const EngineOptions& options = {}, const Workspace& workspace = {});
  ~Engine();
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;

  /// Exact: an Engine can be made with this many bytes and not with one fewer.
  static int64_t workspace_size(const AttentionSpec& spec, const Capacity& capacity, const EngineOptions& options = {});

  const AttentionSpec& spec() const;
  const SchedulerConfig& config() const;
  /// The keys of the kernels that run this spec, for logs and results: "attend.cpu-avx2.bf16.d128.paged.causal".
  const std::string& kernel_key() const;
  /// Bytes of the workspace in use: workspace_size() of its spec, capacity and options.
  int64_t workspace_bytes() const;

  /// Where it runs: cpu or cuda.
  Backend backend() const;
  /// Ordinal of the GPU; -1 on the CPU, or without a device (options.cuda_arch).
  int32_t device() const;

  /// Plans a step. Reads host memory only; `batch` may be freed afterwards (its page ids must stay where run() finds them).
  Plan plan(const Batch& batch);
  /// Plans a step into `plan`, which keeps its device memory: what a captured graph reads. After an error the old step is still there.
  void replan(Plan& plan, const Batch& batch);

  /// Puts the planning of a step into `stream`: one small kernel, nothing read on the host, nothing waited for; may be captured before the runs
  /// (replan_on_device; plan once outside first, which allocates and loads). On a GPU with options.policy = Policy::stream, flat batches, no custom
  /// mask: anything else is refused. The bytes are those of plan() of the same lengths. graph_key() is known at once: it follows from the capacity,
  /// max_q_len and the spec alone, so a captured graph of plan and layers is good for every step with these sizes.
  /// A batch that can't be planned (negative lengths, indptr not increasing, more than was declared or than the capacity) is known to the device
  /// alone: run() then writes NaN into every row of O and LSE, and check() says why. view(), explain() and their like want check() first.
  /// Throws invalid_argument (a size or an address, named), over_capacity (requests or rows), unsupported.
  Plan plan_on_device(const DeviceBatch& batch, void* stream = nullptr);
  /// The next step into the same handle, at the same device address. After an error the old step is still there.
  void replan_on_device(Plan& plan, const DeviceBatch& batch, void* stream = nullptr);
  /// Waits for `stream` and copies the step that the device has planned, which view(), bytes(), explain(), json() and svg() then show. Throws what
  /// plan() would have thrown for its lengths: invalid_argument or over_capacity, the array, the request and the value named. Of a plan that the
  /// host made it does nothing. Not under capture.
  void check(Plan& plan, void* stream = nullptr);

  /// Starts the step's one copy to the device, in `stream` (a CUstream or cudaStream_t; nullptr: the default stream). run() does it itself
  /// where this has not been called; a graph holds launches alone, so before a capture and before every replay call this, with the stream
  /// of the replay. On the CPU it does nothing.
  void upload(Plan& plan, void* stream = nullptr);

  /// Computes attention for all query tokens of the plan. CPU: returns when done; `stream` is nullptr. GPU: puts the launch into `stream`
  /// and returns; may be captured. Runs of one engine are put in order, whatever their streams (they share its workspace).
  void run(const Plan& plan, const RunTensors& tensors, void* stream = nullptr);

  /// Of the memory that a run of `plan` fills where RunTensors::timeline names it; view_timeline() reads it. Where the backend runs, 8-byte aligned.
  TimelineLayout timeline_layout(const Plan& plan) const;

  /// What was considered for this engine and why: kernels, tiles, packed rows, FLOP a byte; with fused RoPE, advice (docs/explain.md).
  std::string explain() const;

 private:
  api::EngineState& state() const;
  std::unique_ptr<api::EngineState> state_;
};

/// One call for one step: makes an engine of exactly the batch's size, plans and runs it. Returns when done, on a GPU too.
void attention(const AttentionSpec& spec, const Batch& batch, const RunTensors& tensors, const EngineOptions& options = {},
               void* stream = nullptr);

}  // namespace kvloom
