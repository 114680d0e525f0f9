#include "kvloom/runtime/tensor_maps.h"

#include <cstring>
#include <memory>

namespace kvloom::runtime {
namespace {

struct Kept {
  TensorMapShape shape;
  TensorMap map;
};
constexpr size_t kPlaces = 512;  // K and V of 80 layers, ragged; who finds another's map in its place asks the driver

uint64_t hash_of(const TensorMapShape& shape) {
  uint64_t words[sizeof shape / 8], hash = 0;
  std::memcpy(words, &shape, sizeof words);
  for (const uint64_t w : words) hash = (hash ^ w ^ w >> 32) * 0x9e3779b97f4a7c15ull;
  return hash >> 32;
}

}  // namespace

jit::CuResult tensor_map(decltype(jit::Driver::tensor_map_encode_tiled) encode, const TensorMapShape& shape, TensorMap& map) {
  static thread_local std::unique_ptr<Kept[]> kept;
  if (kept == nullptr) kept = std::make_unique<Kept[]>(kPlaces);  // zeros, which are no shape: a tensor has a size
  Kept& place = kept[hash_of(shape) % kPlaces];
  if (std::memcmp(&place.shape, &shape, sizeof shape) == 0) {
    map = place.map;
    return jit::kCuSuccess;
  }
  constexpr unsigned kSteps[TensorMapShape::kRank] = {1, 1, 1, 1, 1};
  const jit::CuResult result = encode(&map, shape.type, TensorMapShape::kRank, const_cast<void*>(shape.data), shape.dims, shape.strides, shape.box, kSteps,
                                      jit::kCuTensorMapInterleaveNone, shape.swizzle, shape.promotion, jit::kCuTensorMapFillZeros);
  if (result == jit::kCuSuccess) place = {shape, map};
  return result;
}

}  // namespace kvloom::runtime
