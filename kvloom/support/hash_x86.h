// SHA-256 by the instructions that x86 processors have for it: found kernels are verified at 1 to 2 GB/s instead of 0.3.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvloom {

/// True if this processor has them.
bool has_sha_instructions();
/// `count` blocks of 64 bytes into `state`. Wants has_sha_instructions().
void sha256_blocks_x86(uint32_t (&state)[8], const unsigned char* bytes, size_t count);

}  // namespace kvloom
