// Where an operation around attention runs, looked up and checked.
#pragma once

#include "kvloom/api/ops.h"
#include "kvloom/runtime/device.h"

namespace kvloom::api {

class OpPlace {
 public:
  /// Throws for options that can't be, and for a device that is not there. `where`: the operation.
  OpPlace(const OpOptions& options, const char* where);

  bool on_gpu() const { return device_ != nullptr; }
  const runtime::Device& device() const { return *device_; }
  jit::CuStream stream() const { return static_cast<jit::CuStream>(stream_); }

  /// Throws unless `t` (or an array) is where this place can use it; what is not given passes.
  void check(const Tensor& t, const char* name) const;
  void check_array(const void* p, const char* name) const;

 private:
  const char* where_;
  const runtime::Device* device_ = nullptr;
  void* stream_;
  bool ask_driver_;
};

}  // namespace kvloom::api
