// Q, K, V and O as the tensor memory accelerator reads and writes them: tensor maps, made by the host (runtime/boxes.h), and what coordinates a box has.
#pragma once

#include "kvloom/contract/attend_args.h"

namespace kvloom {

/// What cuTensorMapEncodeTiled fills.
struct alignas(64) TensorMap {
  uint64_t words[16];
};

/// A box of K or V is some keys of one KV head, all dims, as it lies in a tile in shared memory: [keys / 8][dims / block][8 keys][block],
/// swizzled. Coordinates, fastest dimension first:
///   paged:  (0, 0, 0, token within the page / 8, page * page_step + head * head_step)
///   ragged: (0, token, 0, 0, head); `eight`: of 8 keys; `one`: a block of one key, (0, token, block, 0, head)
/// Maps of ragged tensors know no end, since a captured launch may be replayed with more tokens: who asks for a box knows that it is there.
/// Pages that no box fits into are read row by row: the row of a key begins page * page_step + token within the page * token_step + head *
/// head_step units behind the tensor's first byte.
/// A box of Q or O is all heads of a KV head for some tokens, a block of dims: [tokens][heads][block]; (dim, head, token, 0, 0).
struct AttendBoxes {
  struct Of {
    TensorMap map;
    TensorMap eight, one;
    int32_t page_step, token_step, head_step;
    int32_t unit;  // bytes
  };
  Of k, v;
  TensorMap q, o;
  int32_t rows;         // keys of a box, a multiple of 8; 0: pages have none, there are no maps of K and V
  int32_t heads;        // neighbouring KV heads of a box of K or V: [heads][keys / 8].., `eight` and `one` have one
  int32_t tokens;       // ragged: that are there for sure
  int32_t query_tokens;   // of a box of Q, which fills a tile; 0: heads don't divide tiles, there are no such boxes
  int32_t output_tokens;  // of a box of O, which is kOutputBoxRows rows; 0: there are no such boxes
};

/// Rows that a warp of family sm90 has.
inline constexpr int32_t kOutputBoxRows = 16;

struct BoxedAttendArgs {
  AttendArgs attend;
  AttendBoxes boxes;
};

}  // namespace kvloom
