// What the fake driver writes into the 128 bytes of a tensor map, for who reads boxes without an accelerator.
#pragma once

#include <cstdint>

namespace kvloom::test {

struct FakeTensorMap {
  const char* base;
  uint64_t strides[4];  // bytes, of dimensions 1 to 4
  uint32_t dims[5];
  uint16_t box[5];
  uint16_t swizzle;  // bytes; 0: none
  uint16_t element;  // bytes
};
static_assert(sizeof(FakeTensorMap) <= 128);

}  // namespace kvloom::test
