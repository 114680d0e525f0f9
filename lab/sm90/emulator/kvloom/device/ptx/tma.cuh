#pragma once
#include "simt.h"
#include "tests/cuda/fake_tensor_map.h"
namespace kvloom::ptx {
inline void barrier_arrive_expect(uint32_t b, uint32_t bytes) { simt::barrier_arrive_expect(b, bytes); }
inline void barrier_init_fence() {}
inline void fence_shared_async() {}
inline void prefetch_map(const void*) {}
inline void prefetch_box(const void*, int, int, int, int, int) {}
inline simt::Box box_of(const void* map, uint32_t shared, int x0, int x1, int x2, int x3, int x4) {
  const auto& m = *static_cast<const test::FakeTensorMap*>(map);
  return {shared, m.base, {uint64_t(m.element), m.strides[0], m.strides[1], m.strides[2], m.strides[3]}, {m.dims[0], m.dims[1], m.dims[2], m.dims[3], m.dims[4]},
          {m.box[0], m.box[1], m.box[2], m.box[3], m.box[4]}, {x0, x1, x2, x3, x4}, m.swizzle};
}
template <int kCtas>
inline void load_box(uint32_t to, const void* map, uint32_t barrier, int x0, int x1, int x2, int x3, int x4) {
  static_assert(kCtas == 1, "one CTA at a time");
  simt::box_later(box_of(map, to, x0, x1, x2, x3, x4), barrier);
}
inline uint64_t read_once() { return 0; }
inline void load_box(uint32_t to, const void* map, uint32_t barrier, int x0, int x1, int x2, int x3, int x4, uint64_t) {
  simt::box_later(box_of(map, to, x0, x1, x2, x3, x4), barrier);
}
inline void store_box(const void* map, uint32_t from, int x0, int x1, int x2, int x3, int x4) { simt::store_later(box_of(map, from, x0, x1, x2, x3, x4)); }
inline void store_commit() {}
inline void store_wait() { simt::store_wait(); }
}  // namespace kvloom::ptx
