// plan -> output on a GPU: what of a step goes to the device, and the launch. Nothing here waits for the device, except for the host memory
// of a step that was planned two steps ago.
#pragma once

#include "kvloom/contract/attend_boxes.h"
#include "kvloom/plan/device_args.h"
#include "kvloom/plan/planner.h"
#include "kvloom/runtime/modules.h"

#include <memory>

namespace kvloom::runtime {

/// What one copy takes to the device, byte offsets: at 0 the columns of every request's custom mask, then counters (zeros: the copy repairs
/// what an aborted launch left behind), what each CTA begins with, and the plan, packed. What a step does not use stays at the ends and is not copied.
struct UploadLayout {
  int64_t counters = 0;
  int64_t starts = 0;
  int64_t plan = 0;
  int64_t bytes = 0;
};
UploadLayout upload_layout(const plan::PlanLayout& plan, int32_t max_requests, bool has_mask);

/// The memory of one plan handle on the device: a block whose address never changes (captured graphs keep it), and two blocks of
/// page-locked memory that take turns, so the next step can be packed while the last one's copy is under way.
class CudaPlan {
 public:
  CudaPlan(const Device& device, const UploadLayout& layout);

  /// The step that counts from now on; it is not on the device yet. `plan` must stay where it is until the next take(),
  /// `mask_columns` (of each request; custom masks only) until it is.
  void take(const PlanView& plan, const AttendModule::Entry& entry, Span<const int32_t> mask_columns);

 private:
  friend class CudaRunner;
  void pack(int64_t& begin, int64_t& end);
  UploadLayout layout_;
  DeviceMemory device_;
  PinnedMemory host_[2];
  Event copied_[2];
  int now_ = 0;
  PlanView plan_;
  int32_t num_ctas_ = 0;
  DeviceMemory planner_;  // verdict and tables; none before a step is planned on the device
  Span<const int32_t> mask_columns_;
  const AttendModule::Entry* entry_ = nullptr;  // that runs it
  bool uploaded_ = false;
  jit::CuStream ready_on_ = nullptr;  // work on this stream comes after the copy
  bool has_run_ = false;
  jit::CuStream ran_on_ = nullptr;
};

/// Launches the plans of one engine. Its partials are one block of memory, so runs on several streams are put in order by events.
class CudaRunner {
 public:
  CudaRunner(const Device& device, const AttentionSpec& spec, bool early_launch);

  void set_scratch(const Scratch& scratch) { scratch_ = scratch; }

  /// Starts the one copy of the step that `plan` holds, in `stream`. Refused while the stream is being captured.
  void upload(CudaPlan& plan, jit::CuStream stream);
  /// Puts the planning of a step into `stream`: the one that `plan` holds from now on. `args`: but for the plan's memory; `table_bytes`: of the
  /// planner's tables for any step of the engine.
  void plan(CudaPlan& plan, plan::DeviceArgs args, int64_t table_bytes, const AttendModule::Entry& entry, jit::CuStream stream);
  /// Waits for `stream`, and copies what the device has planned: `bytes` of the plan into `out`.
  plan::PlanVerdict fetch(const CudaPlan& plan, char* out, int64_t bytes, jit::CuStream stream) const;
  /// Launches; uploads first where that has not been done. Under capture nothing but the launch is recorded.
  /// `args.params` is set; the rest is set here.
  void run(CudaPlan& plan, BoxedAttendArgs& args, jit::CuStream stream);

 private:
  bool is_capturing(jit::CuStream stream) const;
  void copy(CudaPlan& plan, jit::CuStream stream);
  void follow(jit::CuStream earlier, jit::CuStream stream);
  void prepare(CudaPlan& plan, jit::CuStream stream);
  void launch(const CudaPlan& plan, BoxedAttendArgs& args, jit::CuStream stream) const;

  const Device& device_;
  const AttentionSpec spec_;
  FastDivide page_size_, group_size_;
  Scratch scratch_;
  Event order_;
  bool early_launch_;  // the kernel may start while its predecessor ends (programmatic stream serialization)
  bool has_run_ = false;
  jit::CuStream ran_on_ = nullptr;
};

}  // namespace kvloom::runtime
