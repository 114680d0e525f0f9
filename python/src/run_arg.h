// The tensors of one run, from Python objects to a kvloom_run_tensors.
#pragma once

#include "python/src/engine.h"

#include <vector>

namespace kvloom::python {

/// What a run's tensors must fit.
struct RunShape {
  const SpecFacts& facts;
  Place place;
  int64_t total_tokens;
  int32_t num_requests;
  int64_t num_page_ids;
};

class RunArg {
 public:
  RunArg() = default;
  RunArg(const RunArg&) = delete;

  /// Takes and checks; makes `out` and `lse` where they are wanted and not given.
  void take(const RunHandles& handles, const RunShape& shape);
  const kvloom_run_tensors* c() const { return &tensors_; }
  void* stream() const { return stream_; }
  /// Whether a tensor's framework knows nothing of the stream: it may take back the memory as soon as the call returns.
  bool must_wait() const;
  /// What the caller gets: out, or (out, lse) where an LSE was asked for.
  nb::object result() const;

 private:
  void take_cache(const RunHandles& h, const RunShape& shape);
  void take_arrays(const RunHandles& h, const RunShape& shape);
  void take_scales(const RunHandles& h, const RunShape& shape);
  void take_outputs(const RunHandles& h, const RunShape& shape);
  void take_params(nb::handle params, Place place);
  void check_mask(const RunShape& shape) const;

  kvloom_run_tensors tensors_;
  kvloom_scales scales_;
  TensorArg q_, k_, v_, o_, lse_, page_pos_, alibi_slopes_, sink_, mask_, mask_indptr_, k_scale_, v_scale_;
  IndexArg pages_;
  std::vector<kvloom_param> params_;
  std::unique_ptr<TensorArg[]> param_tensors_;
  std::vector<std::string> param_names_;
  nb::object out_object_, lse_object_;
  bool wants_lse_ = false, made_out_ = false, made_lse_ = false;
  void* stream_ = nullptr;
};

/// KVLOOM_NHD or KVLOOM_HND of "NHD", "HND".
int32_t layout_of(const char* name);

}  // namespace kvloom::python
