// A mask given bit by bit: bit q_index * kv_len + kv_index of the request's bytes, little bit order, 1 keeps the key.
#pragma once

#include "kvloom/attn/mask.h"
#include "kvloom/contract/variant.h"

namespace kvloom::variants {

struct CustomMask {
  template <class P>
  KVLOOM_HD static bool keep(const Coord& c, const P& p) {
    const int32_t columns = p.mask_kv_len[c.request];
    return c.kv_index >= 0 && c.kv_index < columns && mask_bit(p.mask + p.mask_indptr[c.request], c.q_index, columns, c.kv_index);
  }

  /// `keep` for the 32 keys from `c` on, key i in bit i, whatever c.q_head. Reads no byte that is not the request's.
  template <class P>
  KVLOOM_HD static uint32_t keep32(const Coord& c, const P& p) {
    const int32_t columns = p.mask_kv_len[c.request];
    const int32_t begin = max_of<int32_t>(c.kv_index, 0), end = min_of<int32_t>(c.kv_index + 32, columns);
    if (end <= begin) return 0;
    const uint8_t* bits = p.mask + p.mask_indptr[c.request];
    const int64_t first = int64_t(c.q_index) * columns + begin;
    const int64_t last = first + (end - begin) - 1;
    const uint8_t* const from = bits + (first >> 3);
    const uint8_t* const line = from - (reinterpret_cast<uint64_t>(from) & 3);
    uint64_t word = 0;
    if (line >= bits && line + 8 <= p.mask + p.mask_indptr[c.request + 1]) {  // all of it is in two aligned words
      uint32_t half[2];
#if defined(__CUDA_ARCH__)
      half[0] = reinterpret_cast<const uint32_t*>(line)[0], half[1] = reinterpret_cast<const uint32_t*>(line)[1];
#else
      __builtin_memcpy(half, line, 8);
#endif
      word = (half[0] | uint64_t(half[1]) << 32) >> (8 * (from - line) + (first & 7));
    } else {
      for (int64_t byte = first >> 3; byte <= last >> 3; ++byte) word |= uint64_t(bits[byte]) << (8 * (byte - (first >> 3)));
      word >>= first & 7;
    }
    word &= (uint64_t(1) << (end - begin)) - 1;
    return uint32_t(word << (begin - c.kv_index));
  }
};

}  // namespace kvloom::variants
