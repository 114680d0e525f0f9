// From the tensors of a run to the parameters of a kernel, everything checked: after this nothing that a kernel reads or writes lies
// outside what the caller's descriptors say.
#pragma once

#include "kvloom/api/plan_state.h"
#include "kvloom/contract/params.h"

namespace kvloom::api {

/// Throws unless GPU `device` can read `p`: its own memory, managed or page-locked memory.
void check_device_pointer(const void* p, int32_t device, const char* where, const char* name);

/// Throws if the host can't read `p`: memory of a GPU.
void check_host_pointer(const void* p, const char* where, const char* name);

/// The same, of an engine: the driver is asked once an address (asking takes long enough to count in every step and every layer).
class PointerCheck {
 public:
  explicit PointerCheck(int32_t device) : device_(device) {}
  /// A null pointer passes.
  void check(const void* p, const char* where, const char* name);
  /// What plan() reads; page ids where `reads_ids` says so.
  void check_batch(const Batch& batch, bool reads_ids);
  int32_t device() const { return device_; }

 private:
  static constexpr int kBits = 10;
  const void*& slot_of(const void* p) { return known_[uint64_t(reinterpret_cast<uintptr_t>(p)) * 0x9e3779b97f4a7c15u >> (64 - kBits)]; }
  /// look(), unless `p` is null or was looked at before.
  template <class F>
  void once(const void* p, F&& look) {
    const void*& known = slot_of(p);
    if (p == nullptr || known == p) return;
    look();
    known = p;
  }
  int32_t device_;
  const void* known_[1 << kBits] = {};  // of one kind: an engine has one of these for run() and one for plan()
};

/// Throws invalid_argument or mismatch: "run: argument: got X, wanted Y; remedy". On cuda no array of the caller's is read here; page ids
/// are judged by those that the plan was made from. `pointers`: on cuda, shows every address to the driver; nullptr: none.
AttendParams checked_params(const PlanState& plan, const RunTensors& tensors, Backend backend, PointerCheck* pointers);

/// Scales are for quantised tensors: refuses any that would be dropped, and any that is not a finite number above 0. `arrays_here`: the
/// per-head values are in host memory and are looked at too.
void check_scales(const ScaleParams& scale, DType q, DType kv, int32_t num_kv_heads, const char* where, bool arrays_here = true);

/// Checks K or V as `layout` and `spec` want it ("run: k") and returns its strides and number of pages.
struct CacheView {
  int64_t page = 0, token = 0, head = 0;
  int64_t num_pages = 0;  // ragged: tokens
};
CacheView checked_cache(const Tensor& t, const char* where, const char* name, KvLayout layout, Storage storage, int32_t page_size,
                        int32_t num_kv_heads, int32_t dim, DType dtype);

}  // namespace kvloom::api
