// A step as engines have it that plan on the device: its index arrays in device memory.
#pragma once

#include "kvloom/api/engine.h"
#include "tests/cuda/engine_fixture.h"

namespace kvloom::test {

/// A step's index arrays on the device, with room for those of any step within `capacity`.
class DeviceArrays {
 public:
  explicit DeviceArrays(const Capacity& c)
      : qo_(0, 4 * (c.max_requests + 1)), kv_(0, 4 * c.max_requests), list_(0, 4 * (c.max_requests + 1)), pages_(0, 4 * (c.max_kv_tokens + 100)) {
    batch.num_requests = c.max_requests;
    batch.num_tokens = c.max_query_tokens;
    batch.qo_indptr = IndexView(qo_.as<int32_t>(), c.max_requests + 1);
    batch.kv_len = IndexView(kv_.as<int32_t>(), c.max_requests);
    batch.list_indptr = IndexView(list_.as<int32_t>(), c.max_requests + 1);
    batch.pages = IndexView(pages_.as<int32_t>(), c.max_kv_tokens + 100);
  }
  /// Requests that the step does not have are empty.
  void take(const Step& s) {
    std::vector<int32_t> qo(s.qo_indptr), kv(s.kv_len), list(s.list_indptr.begin(), s.list_indptr.end());
    qo.resize(size_t(batch.num_requests) + 1, qo.back());
    list.resize(size_t(batch.num_requests) + 1, list.back());
    kv.resize(size_t(batch.num_requests), 0);
    put(qo, kv, list);
    if (!s.pages.empty()) pages_.upload(s.pages.data(), int64_t(s.pages.size()) * 4);
  }
  void put(const std::vector<int32_t>& qo, const std::vector<int32_t>& kv, const std::vector<int32_t>& list) {
    qo_.upload(qo.data(), int64_t(qo.size()) * 4);
    kv_.upload(kv.data(), int64_t(kv.size()) * 4);
    list_.upload(list.data(), int64_t(list.size()) * 4);
  }
  DeviceBatch batch;

 private:
  GpuBuffer qo_, kv_, list_, pages_;
};

/// Tensors as large as the capacity, whatever the step.
inline void fit(GpuStep& g, const Capacity& c) { g.tensors.q.shape[0] = g.tensors.o.shape[0] = g.tensors.lse.shape[0] = c.max_query_tokens; }

/// The same step in an engine's terms of the host, with as many requests.
inline std::vector<Request> padded(std::vector<Request> requests, int32_t count) {
  requests.resize(size_t(count), {0, 0});
  return requests;
}

}  // namespace kvloom::test
