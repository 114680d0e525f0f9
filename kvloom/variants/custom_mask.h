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
    Bits32 bits = begin32(c, p);
    if (bits.partial) read_bytes(bits.half, p, c.request, Line(c, p).at);
    return bits.word() & ~low_bits(-c.kv_index);
  }

  /// What keep32 reads, asked for, so that several may be on their way.
  struct Bits32 {
    uint32_t half[2];  // eight bytes from a multiple of 4 on
    uint32_t skipped;  // of these bits stand before the first key's; at most 31
    uint32_t there;    // keys that stand before the end of the row
    bool partial;      // some of the eight are not the request's, or keys not the row's: none was asked for, keep32 knows how

    KVLOOM_HD uint32_t word() const { return uint32_t((uint64_t(half[1]) << 32 | half[0]) >> skipped) & there; }
  };
  template <class P>
  KVLOOM_HD static Bits32 begin32(const Coord& c, const P& p) {
    const Line line(c, p);
    const uint32_t there = low_bits(line.columns - c.kv_index);
    const bool inside = c.kv_index >= 0 && line.at >= p.mask_indptr[c.request] && line.at + 8 <= p.mask_indptr[c.request + 1];
    Bits32 bits{{0, 0}, line.skipped, there, there != 0 && !inside};
    if (there != 0 && inside) {
#if defined(__CUDA_ARCH__)
      const uint32_t* const words = reinterpret_cast<const uint32_t*>(p.mask + line.at);
      bits.half[0] = words[0], bits.half[1] = words[1];
#else
      __builtin_memcpy(bits.half, p.mask + line.at, 8);
#endif
    }
    return bits;
  }

 private:
  KVLOOM_HD static uint32_t low_bits(int32_t n) { return n >= 32 ? ~0u : n <= 0 ? 0u : (1u << n) - 1u; }

  /// Where the bits of 32 keys are, in bytes of the whole mask. Of negative keys, and of the first ones, before the request's.
  struct Line {
    int32_t columns;
    int64_t at;  // its address is a multiple of 4, and the first key's byte is one of the four there
    uint32_t skipped;

    template <class P>
    KVLOOM_HD Line(const Coord& c, const P& p) : columns(p.mask_kv_len[c.request]) {
      const int64_t first = int64_t(c.q_index) * columns + c.kv_index, from = p.mask_indptr[c.request] + (first >> 3);
      const int32_t further = int32_t(uint32_t(reinterpret_cast<uint64_t>(p.mask)) + uint32_t(from)) & 3;
      at = from - further;
      skipped = uint32_t(8 * further) + uint32_t(first & 7);
    }
  };

  /// Bytes [at, at + 8) of the mask, zeros for those that are not the request's.
  template <class P>
  KVLOOM_HD static void read_bytes(uint32_t (&half)[2], const P& p, int32_t request, int64_t at) {
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
    for (int32_t i = 0; i < 8; ++i) {
      const bool own = at + i >= p.mask_indptr[request] && at + i < p.mask_indptr[request + 1];
      const uint32_t byte = own ? p.mask[at + i] : 0u;
      if (i < 4)
        half[0] |= byte << (8 * i);
      else
        half[1] |= byte << (8 * (i - 4));
    }
  }
};

}  // namespace kvloom::variants
