#include "kvloom/runtime/launch_cuda.h"

#include "kvloom/base/math.h"
#include "kvloom/plan/packed.h"
#include "kvloom/runtime/boxes.h"
#include "kvloom/runtime/launch_plan.h"
#include "kvloom/support/check.h"

#include <cstring>

namespace kvloom::runtime {

using jit::check_driver;
using jit::driver;

namespace {

constexpr int64_t kAlign = 256;
constexpr int32_t kEarlyLaunchCapability = 90;

}  // namespace

UploadLayout upload_layout(const plan::PlanLayout& plan, int32_t max_requests, bool has_mask) {
  UploadLayout l;
  l.counters = round_up(has_mask ? int64_t(max_requests) * 4 : 0, kAlign);
  l.starts = round_up(l.counters + plan.counter_bytes, kAlign);
  l.plan = round_up(l.starts + plan.start_bytes, kAlign);
  l.bytes = l.plan + plan.plan_bytes;
  return l;
}

CudaPlan::CudaPlan(const Device& device, const UploadLayout& layout) : layout_(layout), device_(device, layout.bytes, "plan") {
  for (int i = 0; i < 2; ++i) {
    host_[i] = PinnedMemory(device, layout.bytes, "plan");
    std::memset(host_[i].data(), 0, size_t(layout.bytes));
    copied_[i] = Event(device);
  }
}

void CudaPlan::take(const PlanView& plan, const AttendModule::Entry& entry, Span<const int32_t> mask_columns) {
  plan_ = plan;
  mask_columns_ = mask_columns;
  entry_ = &entry;
  num_ctas_ = plan.header->num_ctas;
  uploaded_ = false;
}

/// Fills the other block of page-locked memory, once the copy of two steps ago is done, and names the bytes of it that are to be copied.
void CudaPlan::pack(int64_t& begin, int64_t& end) {
  const int next = 1 - now_;
  copied_[next].wait();
  char* const host = host_[next].data();
  end = layout_.plan + plan::write_packed(plan_, host + layout_.plan);
  auto* const starts = reinterpret_cast<CtaStart*>(host + layout_.starts);
  for (int32_t c = 0; c < num_ctas_; ++c) starts[c] = cta_start(plan_, c);
  if (!mask_columns_.empty()) std::memcpy(host, mask_columns_.data, size_t(mask_columns_.size) * sizeof(int32_t));
  now_ = next;
  begin = !mask_columns_.empty() ? 0 : plan_.header->num_units > 0 ? layout_.counters : layout_.starts;
}

CudaRunner::CudaRunner(const Device& device, const AttentionSpec& spec, bool early_launch)
    : device_(device),
      spec_(spec),
      page_size_(uint32_t(spec.page_size)),
      group_size_(uint32_t(spec.group_size())),
      order_(device),
      early_launch_(early_launch && device.target().capability >= kEarlyLaunchCapability) {}

bool CudaRunner::is_capturing(jit::CuStream stream) const {
  jit::CuCaptureStatus status = jit::kCuCaptureNone;
  check_driver(driver().stream_is_capturing(stream, &status), "cuStreamIsCapturing", "run: stream: wanted one of this device");
  return status != jit::kCuCaptureNone;
}

/// Work put into `stream` from now on starts after everything that `earlier` holds at this moment.
void CudaRunner::follow(jit::CuStream earlier, jit::CuStream stream) {
  if (earlier == stream) return;
  order_.record(earlier);
  check_driver(driver().stream_wait_event(stream, order_.handle(), 0), "cuStreamWaitEvent");
}

void CudaRunner::copy(CudaPlan& plan, jit::CuStream stream) {
  if (plan.has_run_) follow(plan.ran_on_, stream);  // a kernel may still read the step before
  if (plan.planner_.size() > 0) follow(plan.ready_on_, stream);  // ... or the planner write it
  int64_t begin = 0, end = 0;
  plan.pack(begin, end);
  check_driver(driver().memcpy_htod_async(plan.device_.address() + jit::CuAddress(begin), plan.host_[plan.now_].data() + begin,
                                          size_t(end - begin), stream),
               "cuMemcpyHtoDAsync", "the plan's copy to the device");
  plan.copied_[plan.now_].record(stream);
  plan.uploaded_ = true;
  plan.ready_on_ = stream;
  // All that has been done with the plan is done where this stream is: the next copy follows it alone, wherever that goes.
  plan.has_run_ = true;
  plan.ran_on_ = stream;
}

void CudaRunner::plan(CudaPlan& plan, plan::DeviceArgs args, int64_t table_bytes, const AttendModule::Entry& entry, jit::CuStream stream) {
  const ContextGuard guard(device_);
  const bool capturing = is_capturing(stream), first = plan.planner_.size() == 0;
  if (first) {
    if (capturing) {
      fail(ErrorCode::invalid_argument,
           "plan_on_device: stream: got one that is being captured, for a plan that no device has planned yet, wanted it made by plan_on_device "
           "before the capture begins; memory can't be allocated under it");
    }
    plan.planner_ = DeviceMemory(device_, kAlign + table_bytes, "planner");
  }
  if (!capturing) {
    if (plan.has_run_) follow(plan.ran_on_, stream);  // a kernel may still read the step before
    if (plan.uploaded_) follow(plan.ready_on_, stream);
  }
  // A planner writes what a step has; kernels read a CTA's start as a whole line, and check() all of the plan.
  if (first) check_driver(driver().memset_d8_async(plan.device_.address(), 0, size_t(plan.layout_.bytes), stream), "cuMemsetD8Async", "the plan's memory");
  args.plan = plan.device_.data() + plan.layout_.plan;
  args.counters = reinterpret_cast<uint32_t*>(plan.device_.data() + plan.layout_.counters);
  args.starts = reinterpret_cast<CtaStart*>(plan.device_.data() + plan.layout_.starts);
  args.verdict = reinterpret_cast<plan::PlanVerdict*>(plan.planner_.data());
  if (plan::plan_table_bytes(args) > plan::kPlanTableBytes) args.tables = plan.planner_.data() + kAlign;
  launch_plan(device_, args, stream);
  if (!capturing) plan.copied_[plan.now_].record(stream);
  plan.entry_ = &entry;
  plan.num_ctas_ = args.header.num_ctas;
  plan.uploaded_ = true;
  plan.ready_on_ = stream;
}

plan::PlanVerdict CudaRunner::fetch(const CudaPlan& plan, char* out, int64_t bytes, jit::CuStream stream) const {
  const ContextGuard guard(device_);
  if (is_capturing(stream)) {
    fail(ErrorCode::invalid_argument, "check: stream: got one that is being captured, wanted one that is not; check waits for the device");
  }
  plan::PlanVerdict verdict{};
  check_driver(driver().stream_synchronize(stream), "cuStreamSynchronize", "a kernel of the stream failed");
  check_driver(driver().memcpy_dtoh(&verdict, plan.planner_.address(), sizeof verdict), "cuMemcpyDtoH", "the planner's verdict");
  check_driver(driver().memcpy_dtoh(out, plan.device_.address() + jit::CuAddress(plan.layout_.plan), size_t(bytes)), "cuMemcpyDtoH", "the plan");
  return verdict;
}

void CudaRunner::upload(CudaPlan& plan, jit::CuStream stream) {
  const ContextGuard guard(device_);
  if (is_capturing(stream)) {
    fail(ErrorCode::invalid_argument,
         "upload: stream: got one that is being captured, wanted one that is not; a graph would copy this step at every replay. Upload "
         "before the capture begins, and before every replay");
  }
  if (!plan.uploaded_) copy(plan, stream);
}

/// Makes the plan and the partials ready for a launch in `stream`.
void CudaRunner::prepare(CudaPlan& plan, jit::CuStream stream) {
  const bool capturing = is_capturing(stream);
  if (capturing && !plan.uploaded_) {
    fail(ErrorCode::invalid_argument,
         "run: plan: got one that is not on the device yet, under stream capture, wanted it there; call upload(plan, stream) before the "
         "capture begins (a graph holds the launch alone and replays later steps of the same graph_key)");
  }
  if (!capturing) {
    if (has_run_) follow(ran_on_, stream);  // the partials are in use there
    if (!plan.uploaded_) {
      copy(plan, stream);
    } else if (plan.ready_on_ != stream) {
      check_driver(driver().stream_wait_event(stream, plan.copied_[plan.now_].handle(), 0), "cuStreamWaitEvent");
      plan.ready_on_ = stream;
    }
    has_run_ = plan.has_run_ = true;
    ran_on_ = plan.ran_on_ = stream;
  }
}

void CudaRunner::run(CudaPlan& plan, BoxedAttendArgs& args, jit::CuStream stream) {
  const ContextGuard guard(device_);
  // The layers behind a step's first, in the stream of it: whether or not it is being captured, nothing but the launch is left to do.
  const bool settled = plan.uploaded_ && plan.ready_on_ == stream && has_run_ && ran_on_ == stream && plan.has_run_ && plan.ran_on_ == stream;
  if (!settled) prepare(plan, stream);
  VariantParams& variant = args.attend.params.variant;
  if (variant.mask != nullptr) variant.mask_kv_len = reinterpret_cast<const int32_t*>(plan.device_.data());
  launch(plan, args, stream);
}

void CudaRunner::launch(const CudaPlan& plan, BoxedAttendArgs& boxed, jit::CuStream stream) const {
  AttendArgs& args = boxed.attend;
  args.plan = plan.device_.data() + plan.layout_.plan;
  args.starts = reinterpret_cast<const CtaStart*>(plan.device_.data() + plan.layout_.starts);
  args.scratch = scratch_;
  args.scratch.counters = reinterpret_cast<uint32_t*>(plan.device_.data() + plan.layout_.counters);
  args.page_size = page_size_;
  args.group_size = group_size_;
  args.num_qo_heads = spec_.num_qo_heads;
  args.plan_settled = plan.planner_.size() == 0;
  const AttendModule::Entry& entry = *plan.entry_;
  if (entry.box_keys > 0) boxed.boxes = make_boxes(spec_, args.params, {entry.box_keys, entry.tile_rows, entry.fetch_bytes, entry.box_heads});
  const int32_t num_ctas = plan.num_ctas_ * entry.cluster;
  jit::CuLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (early_launch_) {
    attributes[count].id = jit::kCuLaunchProgrammaticStreamSerialization;
    attributes[count++].value.programmatic_stream_serialization_allowed = 1;
  }
  if (entry.cluster > 1) {
    attributes[count].id = jit::kCuLaunchClusterDimension;
    attributes[count++].value.cluster = {unsigned(entry.cluster), 1, 1};
  }
  const jit::CuLaunchConfig config = {unsigned(num_ctas),           1,      1,          unsigned(entry.threads), 1, 1,
                                      unsigned(entry.shared_bytes), stream, attributes, count};
  void* list[] = {&boxed};
  const jit::CuResult result = driver().launch_kernel_ex(&config, entry.function, list, nullptr);
  if (result == jit::kCuSuccess) [[likely]]
    return;
  jit::fail_driver(result, "cuLaunchKernelEx",
                   kvloom::format("{} CTAs of {} threads, {} bytes of shared memory", num_ctas, entry.threads, entry.shared_bytes));
}

}  // namespace kvloom::runtime
