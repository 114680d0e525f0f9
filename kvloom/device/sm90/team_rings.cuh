// A computing warpgroup's places in the rings: waiting until tiles are full, seeing them ahead of time, and leaving them.
#pragma once

#include "kvloom/device/sm90/team_rows.cuh"

namespace kvloom::sm90 {

template <AttendConfig C, class V>
struct TeamRings : TeamRows<C, V> {
  using Rows = TeamRows<C, V>;
  using Rows::m, Rows::lane;

  // Where the next tile is.
  RingPlace<1>& query_at;
  RingPlace<C.stages>& key_at;
  RingPlace<C.value_stages>& value_at;
  bool keys_there = false, values_there = false;  // of key_at and value_at, seen ahead of time (and fenced, if gathered)
  const Descriptor keys0, values0;  // of the rings' first places
  const bool gathered;  // tiles come by copies of threads, whose writes wgmma sees behind a fence alone

  __device__ __forceinline__ TeamRings(const BoxedAttendArgs& a, SharedMemory<C, V>& memory, TeamPlaces<C>& places, bool gathered)
      : Rows(a, memory, places), query_at(places.query), key_at(places.keys), value_at(places.values), keys0(KTile<C>::keys(ptx::shared_address(m.k[0])).kept()),
        values0(VTile<C>::values(ptx::shared_address(m.v[0])).kept()), gathered(gathered) {}

  __device__ __forceinline__ Descriptor key_tile() const { return keys0.further(key_at.at * SharedMemory<C, V>::kStageK); }
  __device__ __forceinline__ Descriptor value_tile() const { return values0.further(value_at.at * SharedMemory<C, V>::kStageV); }

  /// This warp is done with a tile, here and where else the same boxes landed.
  __device__ __forceinline__ void warp_leave(uint64_t& left) const {
    if constexpr (C.ctas == 1) {
      if (block::lane_arrives(lane)) ptx::barrier_arrive(ptx::shared_address(&left));
    } else if constexpr (block::kArrivingLanes == 1) {
      if (lane < C.ctas) ptx::barrier_arrive_at(ptx::shared_address(&left), uint32_t(lane));
    } else {
      for (int cta = 0; cta < C.ctas; ++cta) ptx::barrier_arrive_at(ptx::shared_address(&left), uint32_t(cta));
    }
  }
  __device__ __forceinline__ void leave_keys() { warp_leave(m.keys.left[key_at.at]), key_at.next(), keys_there = false; }
  __device__ __forceinline__ void leave_values() { warp_leave(m.values.left[value_at.at]), value_at.next(), values_there = false; }
  __device__ __forceinline__ void look_for_keys() { keys_there = m.keys.is_full(key_at); }
  /// Between products, where a fence holds nothing up: one for both.
  __device__ __forceinline__ void look_for_gathered() {
    keys_there = m.keys.is_full(key_at), values_there = m.values.is_full(value_at);
    if (keys_there || values_there) ptx::fence_shared_async();
  }
  /// `kMayGather`: tiles may come by copies; they do if `gathered`.
  template <bool kMayGather = C.gathers>
  __device__ __forceinline__ void wait_keys() {
    if (keys_there) return;
    m.keys.wait_full(key_at);
    if (kMayGather && gathered) ptx::fence_shared_async();
  }
  template <bool kMayGather = C.gathers>
  __device__ __forceinline__ void wait_values() {
    if (kMayGather && values_there) return;
    m.values.wait_full(value_at);
    if (!kMayGather || !gathered) return;
    ptx::fence_shared_async();
    values_there = true;
  }
  /// A tile that none of the warpgroup's rows keeps anything of.
  __device__ __forceinline__ void skip_tile() {
    m.keys.wait_full(key_at), leave_keys();
    m.values.wait_full(value_at), leave_values();
  }
  __device__ __forceinline__ void leave_queries() {
    m.query.warp_leave(query_at);
    query_at.next();
  }
};

}  // namespace kvloom::sm90
