#include "kvloom/support/hash.h"

#include "kvloom/support/hash_rounds.h"
#include "kvloom/support/hash_x86.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace kvloom {
namespace {

// The first 32 bits of the fractional parts of the square roots of the first 8 primes.
constexpr uint32_t kStart[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

void add_block(uint32_t (&state)[8], const unsigned char* bytes) {
  uint32_t w[64];
  for (int i = 0; i < 16; ++i) {
    w[i] = uint32_t(bytes[4 * i]) << 24 | uint32_t(bytes[4 * i + 1]) << 16 | uint32_t(bytes[4 * i + 2]) << 8 | bytes[4 * i + 3];
  }
  for (int i = 16; i < 64; ++i) {
    const uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + w[i - 7] + (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
  }
  uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6], h = state[7];
  for (int i = 0; i < 64; ++i) {
    const uint32_t t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) + kSha256Rounds[i] + w[i];
    const uint32_t t2 = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1;
    d = c, c = b, b = a, a = t1 + t2;
  }
  const uint32_t sums[8] = {a, b, c, d, e, f, g, h};
  for (int i = 0; i < 8; ++i) state[i] += sums[i];
}

}  // namespace

Sha256::Sha256() { std::memcpy(state_, kStart, sizeof state_); }

void Sha256::blocks(const unsigned char* bytes, size_t count) {
  if (by_instructions_ && has_sha_instructions()) return sha256_blocks_x86(state_, bytes, count);
  for (; count > 0; --count, bytes += 64) add_block(state_, bytes);
}

Sha256& Sha256::add(std::string_view text) {
  const auto* from = reinterpret_cast<const unsigned char*>(text.data());
  size_t left = text.size();
  while (left > 0) {
    const size_t have = size_ % 64, taken = have == 0 && left >= 64 ? left / 64 * 64 : std::min(left, 64 - have);
    if (taken >= 64) {
      blocks(from, taken / 64);
    } else {
      std::memcpy(rest_ + have, from, taken);
      if (have + taken == 64) blocks(rest_, 1);
    }
    from += taken, left -= taken, size_ += taken;
  }
  return *this;
}

Sha256& Sha256::add_field(std::string_view text) { return add(std::to_string(text.size())).add(":").add(text); }

std::string Sha256::hex() {
  const uint64_t bits = size_ * 8;
  add(std::string_view("\x80", 1));
  while (size_ % 64 != 56) add(std::string_view("\0", 1));
  char length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(bits >> (56 - 8 * i));
  add(std::string_view(length, 8));
  std::string text;
  for (const uint32_t word : state_) {
    for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[word >> shift & 15];
  }
  return text;
}

std::string sha256_hex(std::string_view text) { return Sha256().add(text).hex(); }

}  // namespace kvloom
