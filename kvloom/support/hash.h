// SHA-256 (FIPS 180-4): names of cached kernels, and the proof that a file is the one that was written.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvloom {

class Sha256 {
 public:
  /// By the processor's instructions for it, where it has them.
  Sha256();
  /// By arithmetic, as where it has none.
  static Sha256 plain() {
    Sha256 hash;
    hash.by_instructions_ = false;
    return hash;
  }
  /// Adds the bytes of `text`.
  Sha256& add(std::string_view text);
  /// Adds `text` with its length before it, so that neighbouring fields can't be confused.
  Sha256& add_field(std::string_view text);
  /// 64 lower-case hex digits. Ends the hash: nothing can be added afterwards.
  std::string hex();

 private:
  void blocks(const unsigned char* bytes, size_t count);
  bool by_instructions_ = true;
  uint32_t state_[8];
  unsigned char rest_[64];
  uint64_t size_ = 0;
};

/// Of one text.
std::string sha256_hex(std::string_view text);

}  // namespace kvloom
