// A warpgroup's rows of a pass and what they keep of a tile: scores become logits, masks are made, values that nobody keeps become zeros.
#pragma once

#include "kvloom/device/block/scaling.cuh"
#include "kvloom/device/sm90/load.cuh"

namespace kvloom::sm90 {

inline constexpr int kTeamBarrier = 1;  // and the next ones: of each warpgroup that computes
inline constexpr int kComputeBarrier = 8;  // of all of them

template <AttendConfig C, class V>
struct TeamRows {
  static constexpr block::Form kForm = block::form_of<V>(false);
  const AttendArgs& args;
  const AttendBoxes& boxes;
  SharedMemory<C, V>& m;
  const int lane = int(threadIdx.x) & 31, team = ptx::uniform(int(threadIdx.x) >> 7) - 1, warp = ptx::uniform(int(threadIdx.x) >> 5) & 3;
  const int team_row0 = team * 64, row0 = team_row0 + warp * 16;  // of the CTA's rows

  Pass<C>* pass;
  block::Scaling scaling;
  int &masks_made, &masks_used;

  __device__ __forceinline__ TeamRows(const BoxedAttendArgs& a, SharedMemory<C, V>& memory, TeamPlaces<C>& places)
      : args(a.attend), boxes(a.boxes), m(memory), masks_made(places.masks_made), masks_used(places.masks_used) {}

  /// Makes `next` the pass that is worked on.
  __device__ __forceinline__ void take(Pass<C>& next) {
    pass = &next;
    scaling = next.scaling;
  }

  __device__ __forceinline__ block::Rows rows() const { return {pass->row + row0, pass->kept + row0, &pass->hull}; }
  template <bool kEdge>
  __device__ __forceinline__ block::WarpKeys keys_of(int32_t token) const {
    const auto& mask = m.mask[team * 4 + warp];
    const bool masked = kEdge && pass->masked;
    return {&pass->group, token, 0, pass->kv_head, pass->group.kv_pos0 + token, masked && pass->group.kv_position != KvPosition::linear ? mask.pos : nullptr, masked ? mask.word : nullptr, 0,
            C.tile_kv, C.tile_kv / 32};
  }
  /// What the warp's rows keep of the tile at `token`, where ranges don't say it.
  __device__ __forceinline__ void warp_make_mask(int32_t token) {
    auto& mask = m.mask[team * 4 + warp];
    const block::KeySpan& keys = pass->walk.keys;
    __syncwarp();
    if (block::mask_needs_positions<V>(pass->group)) {
#pragma unroll 1
      for (int i = lane; i < C.tile_kv; i += 32) {
        mask.pos[i] = block::position_of<C.paged>(args, pass->group, clamp_to(token + i, keys.begin, max_of(keys.begin, keys.end - 1)));
      }
      __syncwarp();
    }
    const int count = clamp_to(pass->row_count - row0, 0, 16);
    block::warp_make_mask<V, C.tile_kv, false>(args.params.variant, pass->group, rows(),
                                        block::RowRuns::of<V>(args.group_size, pass->item.row_begin + pass->row_begin + row0, count), pass->kv_head, token,
                                        mask);
    if (lane < C.tile_kv / 32 && count > 0) atomicOr(&m.live[masks_made % 3][lane], mask.live[lane]);
    ++masks_made;
  }
  /// Scores of the tile at `token` become logits.
  template <bool kEdge>
  __device__ __forceinline__ void apply_variant(float (&s)[1][C.key_tiles()][4], int32_t token) {
    constexpr bool kHooked = kForm == block::Form::hooked && (block::has_logit<V>() || block::has_weight<V>());  // hooks see no key that isn't kept
    bool cut = false, only_ends = false;
    if constexpr (kEdge) {
      const block::KeptHull& hull = pass->warp_hull[team * 4 + warp];
      cut = pass->masked ? m.mask[team * 4 + warp].full == 0 : token < hull.all_begin || token + C.tile_kv > hull.all_end;
      only_ends = !kHooked && cut && !pass->masked && token >= hull.all_begin;
    }
    if constexpr (kEdge && kForm == block::Form::squashed) {
      // As warp_apply_variant does for stale scores, but here: taken there, soft-capped kernels spill more.
      if (cut) return block::apply_to_rows<V, true, block::Logits::squashed>(s, args.params.variant, scaling.by, rows(), 0, keys_of<kEdge>(token));
    }
    const block::ScoreFactors by{scaling.by.hooks, kEdge ? scaling.by.others : 1.0f};  // plain tiles have no others (reach_of)
    block::warp_apply_variant<V, kForm>(s, args.params.variant, by, rows(), 0, keys_of<kEdge>(token), cut && !only_ends);
    if (only_ends) block::mask_after_ends<V>(s, rows(), 0, keys_of<kEdge>(token));
  }

  /// Values of keys that no row of the group keeps are whatever is there: zeros instead, before they are multiplied by weights of zero.
  /// `tile`: where those of the tile at `token` are, shared memory.
  __device__ __forceinline__ void clear_dead_values(uint32_t tile, int32_t token) {
    const block::TileWalk& walk = pass->walk;
    if (!pass->masked && token >= walk.any_begin && token + C.tile_kv <= pass->seen_end) return;
    if (pass->masked) ptx::named_barrier_sync(kComputeBarrier, 128 * C.teams());  // all have said what they keep
    constexpr int kBlockChunks = VTile<C>::kBlockBytes / 16, kChunks = VTile<C>::kBlocks * kBlockChunks;
    uint32_t live[C.tile_kv / 32];
#pragma unroll
    for (int w = 0; w < C.tile_kv / 32; ++w) {
      const int32_t key = token + 32 * w + lane;
      live[w] = pass->masked ? m.live[masks_used % 3][w] : __ballot_sync(0xffffffffu, key >= walk.keys.begin && walk.touches(key));
    }
    const int thread = int(threadIdx.x) & 127;
#pragma unroll
    for (int i = 0; i < C.tile_kv * kChunks / 128; ++i) {
      const int r = (i * 128 + thread) / kChunks, chunk = (i * 128 + thread) % kChunks;
      const uint32_t at = VTile<C>::row(r) + uint32_t(chunk / kBlockChunks * VTile<C>::kBlockStride + chunk % kBlockChunks * 16);
      const int word = i * 128 / kChunks / 32;  // or the next one, where rows' chunks don't divide 128
      const uint32_t bits = r / 32 == word ? live[word] : live[min_of(word + 1, C.tile_kv / 32 - 1)];
      if (!(bits >> (r % 32) & 1u)) ptx::store_shared_16(tile + at, make_uint4(0, 0, 0, 0));
    }
    ptx::fence_shared_async();
    if (!pass->masked) return ptx::named_barrier_sync(kTeamBarrier + team, 128);
    // The words of the tile before this one: all have read them, and nobody writes them before the barrier.
    if (const int word = int(threadIdx.x) - 128; word < C.tile_kv / 32) m.live[(masks_used + 2) % 3][word] = 0;
    ptx::named_barrier_sync(kComputeBarrier, 128 * C.teams());
    ++masks_used;
  }
};

}  // namespace kvloom::sm90
