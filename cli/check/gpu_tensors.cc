#include "cli/check/gpu_tensors.h"

namespace kvloom::check {
namespace {

/// Bytes from the first to one past the last element.
int64_t extent(const Tensor& t) {
  int64_t last = 0;
  for (int32_t d = 0; d < t.ndim; ++d) {
    if (t.shape[d] == 0) return 0;
    last += (t.shape[d] - 1) * t.stride[d];
  }
  return t.ndim > 0 ? (last + 1) * size_of(t.dtype) : 0;
}

}  // namespace

GpuTensors::GpuTensors(const Case& c, const Batch& batch, const RunTensors& host, int32_t device) : device_(device), tensors_(host) {
  move(tensors_.q);
  move(tensors_.k);
  move(tensors_.v);
  o_ = move_output(tensors_.o);
  lse_ = move_output(tensors_.lse);
  const auto array = [&](auto*& pointer, int64_t count) {
    if (pointer != nullptr)
      pointer = static_cast<std::remove_reference_t<decltype(pointer)>>(put(pointer, count * int64_t(sizeof *pointer)));
  };
  if (batch.pages.given()) {
    void* ids = put(batch.pages.data, batch.pages.size * (batch.pages.is_64 ? 8 : 4));
    tensors_.pages.data = ids;
    tensors_.pages.size = batch.pages.size;
    tensors_.pages.is_64 = batch.pages.is_64;
  }
  array(tensors_.page_pos, batch.pages.size);
  array(tensors_.alibi_slopes, c.spec.num_qo_heads);
  array(tensors_.sink, c.spec.num_qo_heads);
  if (tensors_.mask != nullptr) array(tensors_.mask, tensors_.mask_indptr[c.num_requests()]);
  array(tensors_.mask_indptr, int64_t(c.num_requests()) + 1);
  array(tensors_.scale.k_per_head, c.spec.num_kv_heads);
  array(tensors_.scale.v_per_head, c.spec.num_kv_heads);
  for (const VariantParam& p : host.params) {
    params_.push_back(p);
    if (p.ndim > 0) params_.back().data = put(p.data, elements_of(p) * size_of(p.type));
  }
  tensors_.params = {params_.data(), int64_t(params_.size())};
}

void* GpuTensors::put(const void* data, int64_t bytes) {
  buffers_.emplace_back(device_, bytes);
  buffers_.back().upload(data, bytes);
  return buffers_.back().data();
}

void GpuTensors::move(Tensor& t) {
  if (!t.given()) return;
  t.data = put(t.data, extent(t));
  t.device_type = 2;
}

GpuTensors::Output GpuTensors::move_output(Tensor& t) {
  if (!t.given()) return {};
  Output out{GpuBuffer(device_, extent(t)), t.data};
  t.data = out.buffer.data();
  t.device_type = 2;
  return out;
}

void GpuTensors::upload_outputs() {
  for (Output* out : {&o_, &lse_}) out->buffer.upload(out->host, out->buffer.size());
}

void GpuTensors::download_outputs() {
  gpu_synchronize(device_);
  for (Output* out : {&o_, &lse_}) out->buffer.download(out->host, out->buffer.size());
}

}  // namespace kvloom::check
