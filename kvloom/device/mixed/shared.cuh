// Shared memory of a CTA of the mixed family: what items are worked on with lies in the same place for both kinds, beside it what each kind has for
// as long as the CTA lasts.
#pragma once

#include "kvloom/device/block/item_list.cuh"
#include "kvloom/device/mixed/config.h"
#include "kvloom/device/sm90/gather.cuh"
#include "kvloom/device/stream/gather.cuh"

namespace kvloom::mixed {

inline constexpr int kHandOverBarrier = 9;  // behind those of sm90 and stream

/// Its configurations with room for each other's memory.
template <AttendConfig C, class V>
struct Places {
  static constexpr int kManyItems = int(sizeof(sm90::ItemMemory<C.many>)), kFewItems = int(sizeof(stream::ItemMemory<C.few>));
  static constexpr int kItems = max_of(kManyItems, kFewItems);
  static constexpr int kManyLasting = int(sizeof(sm90::SharedMemory<C.many, V>)) - kManyItems;
  static_assert(kItems % 128 == 0 && kManyLasting % 128 == 0);

  KVLOOM_HD static constexpr sm90::AttendConfig many() {
    sm90::AttendConfig c = C.many;
    c.apart = kItems - kManyItems;
    return c;
  }
  KVLOOM_HD static constexpr stream::AttendConfig few() {
    stream::AttendConfig c = C.few;
    c.apart = kItems + kManyLasting - kFewItems;
    return c;
  }
};

/// Both kinds', which begin at the same address.
template <AttendConfig C, class V>
using ManyMemory = sm90::SharedMemory<Places<C, V>::many(), V>;
template <AttendConfig C, class V>
using FewMemory = stream::SharedMemory<Places<C, V>::few(), V>;

/// How far a warp has come with either kind: no register's business while it works on the other.
template <AttendConfig C, class V>
struct Computing {
  sm90::TeamPlaces<Places<C, V>::many()> many;
  stream::WarpPlaces<Places<C, V>::few()> few;
};
template <AttendConfig C, class V>
struct Loading {
  sm90::RowLoaderProgress<Places<C, V>::many()> many;
  stream::RowLoaderProgress<Places<C, V>::few()> few;
};
/// How far the making of passes has come.
struct Making {
  int32_t next = 0, items = -1;  // of the list
  int kind = 1;      // of the passes made last: everybody begins with many rows
  bool done = false;
  block::MakerPlace<sm90::kPasses> many;
  block::MakerPlace<stream::kPasses> few;
  block::Touches waiting;  // stream::PassMaker
};

template <AttendConfig C, class V>
struct BothMemory {
  Computing<C, V> computing[C.few.kWarps];
  Loading<C, V> loading[C.few.kLoaderWarps];  // where rows are fetched one by one
  Making making;
};
template <AttendConfig C, class V>
inline constexpr int kBothAt = int(sizeof(FewMemory<C, V>));

template <AttendConfig C, class V>
constexpr int shared_bytes() {
  return kBothAt<C, V> + int(sizeof(BothMemory<C, V>));
}

}  // namespace kvloom::mixed
