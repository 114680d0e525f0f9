// Which values a row of Q, K or V holds: a piece of a table of random elements (values.h), at an offset hashed from what the row is. The
// same on the host and on a GPU.
#pragma once

#include "cli/replay/mix.h"

namespace kvloom::replay {

inline constexpr uint64_t kPieces = 1 << 16;  // of a table
inline constexpr int64_t kPieceStep = 16;     // elements from one to the next; a row runs over several

/// What tells the rows of Q of a layer, and of K and V of a pool, from those of others.
inline constexpr uint64_t kQSalt = 0x71;
KVLOOM_HD uint64_t q_salt(int32_t layer) { return kQSalt + (uint64_t(layer) << 32); }
KVLOOM_HD uint64_t kv_salt(int32_t pool) { return uint64_t(pool) << 32; }

/// Of a token by its content number: of its rows of Q or K, or of V.
KVLOOM_HD uint64_t token_hash(uint64_t token, uint64_t salt, bool is_v) {
  const uint64_t hash = mix(token, salt);
  return is_v ? ~hash : hash;
}

/// The piece that a head's row of such a token is.
KVLOOM_HD uint64_t piece_of(uint64_t hash, int64_t head) { return (mix64(hash + uint64_t(head)) >> 32) % kPieces; }

}  // namespace kvloom::replay
