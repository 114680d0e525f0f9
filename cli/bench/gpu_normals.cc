#include "cli/bench/gpu_normals.h"

#include "cli/bench/timing.h"

#include <algorithm>

namespace kvloom::cli {
namespace {

constexpr int64_t kBlockValues = 4000037;  // a prime number: it never lines up with a row or a page

}  // namespace

GpuBuffer GpuNormals::make(int64_t elements, DType dtype) {
  Block& block = blocks_[dtype];
  if (block.values.size() == 0) {
    const std::vector<char> values = normal_block(dtype, kBlockValues, 1 + uint32_t(dtype));
    block.values = GpuBuffer(device_, int64_t(values.size()));
    block.values.upload(values.data(), int64_t(values.size()));
  }
  const int64_t size = size_of(dtype);
  GpuBuffer to(device_, elements * size);
  for (int64_t done = 0; done < elements;) {
    const int64_t n = std::min(elements - done, kBlockValues - block.next);
    stream_.copy(to.data() + done * size, block.values.data() + block.next * size, n * size);
    done += n;
    block.next = (block.next + n) % kBlockValues;
  }
  stream_.synchronize();
  return to;
}

}  // namespace kvloom::cli
