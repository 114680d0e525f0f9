// What a compiled unit of attention says of itself: the launch of its entries. The device's variable kvloom_facts; every program of a unit
// has it.
#pragma once

#include "kvloom/base/platform.h"

namespace kvloom {

struct UnitFacts {
  struct Entry {
    int32_t threads;
    int32_t shared_bytes;  // dynamic
    int32_t ctas_per_sm;   // aimed at
  };
  struct Tile {
    int32_t rows;
    int32_t keys;
  };
  Entry memory, compute, mixed, small;
  Tile memory_tile, compute_tile, small_tile;  // small: of the memory class in mixed
};

}  // namespace kvloom
