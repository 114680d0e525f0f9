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
    return end32(begin32(c, p), c, p);
  }

  /// keep32 in two steps, so that several may be on their way: the bits asked for ...
  struct Bits32 {
    uint32_t half[2];  // eight bytes from a multiple of 4 on
    uint32_t skipped;  // of these bits stand before the first key's; at most 31
    bool partial;      // some of the eight are not the request's: not read yet
  };
  template <class P>
  KVLOOM_HD static Bits32 begin32(const Coord& c, const P& p) {
    const Line line(c, p);
    Bits32 bits{{0, 0}, line.skipped, line.count > 0 && (line.at < line.begin || line.at + 8 > line.end)};
    if (line.count > 0 && !bits.partial) {
#if defined(__CUDA_ARCH__)
      bits.half[0] = reinterpret_cast<const uint32_t*>(line.at)[0], bits.half[1] = reinterpret_cast<const uint32_t*>(line.at)[1];
#else
      __builtin_memcpy(bits.half, line.at, 8);
#endif
    }
    return bits;
  }
  /// ... and made a word.
  template <class P>
  KVLOOM_HD static uint32_t end32(Bits32 bits, const Coord& c, const P& p) {
    const int32_t begin = max_of<int32_t>(c.kv_index, 0), count = min_of<int32_t>(c.kv_index + 32, p.mask_kv_len[c.request]) - begin;
    if (count <= 0) return 0;
    if (bits.partial) read_bytes(bits, Line(c, p));
    const uint32_t word = bits.skipped == 0 ? bits.half[0] : bits.half[0] >> bits.skipped | bits.half[1] << (32 - bits.skipped);
    return (count < 32 ? word & ((1u << count) - 1u) : word) << (begin - c.kv_index);
  }

 private:
  struct Line {
    const uint8_t *begin, *end;  // the request's bytes
    const uint8_t* at;           // a multiple of 4, at most 3 before the first key's byte
    uint32_t skipped;
    int32_t count;  // keys that there are

    template <class P>
    KVLOOM_HD Line(const Coord& c, const P& p) {
      const int32_t columns = p.mask_kv_len[c.request], first_key = max_of<int32_t>(c.kv_index, 0);
      count = min_of<int32_t>(c.kv_index + 32, columns) - first_key;
      begin = p.mask + p.mask_indptr[c.request];
      end = p.mask + p.mask_indptr[c.request + 1];
      const int64_t first = int64_t(c.q_index) * columns + first_key;
      const uint8_t* const from = begin + (first >> 3);
      at = from - (reinterpret_cast<uint64_t>(from) & 3);
      skipped = uint32_t(8 * (from - at) + (first & 7));
    }
  };

  KVLOOM_HD static void read_bytes(Bits32& bits, const Line& line) {
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
    for (uint32_t i = 0; i < 8; ++i) {
      const uint32_t byte = line.at + i >= line.begin && line.at + i < line.end ? line.at[i] : 0u;
      if (i < 4)
        bits.half[0] |= byte << (8 * i);
      else
        bits.half[1] |= byte << (8 * (i - 4));
    }
  }
};

}  // namespace kvloom::variants
