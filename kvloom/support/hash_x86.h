// SHA-256 by the instructions that x86 processors have for it: hashing is most of what finding a kernel in the cache takes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvloom {

/// True if this processor has them.
bool has_sha_instructions();
/// `count` blocks of 64 bytes into `state`. Wants has_sha_instructions().
void sha256_blocks_x86(uint32_t (&state)[8], const unsigned char* bytes, size_t count);

}  // namespace kvloom
