// Bringing K and V into the shapes that the products of the tile kernel want: K transposed into panels, V cut into panels. Compiled once a
// target.
#include "kvloom/cpu/float_rows.inl"
#include "kvloom/cpu/microkernel.inl"

namespace kvloom::cpu::KVLOOM_TARGET {
namespace {

/// Asks for the bytes of a row before they are needed: rows of one head are pages apart, no hardware prefetcher follows them.
/// kLocality 3: into the first-level cache, 2: into the second.
template <int kLocality>
KVLOOM_SIMD void fetch_row(const char* row, int32_t bytes) {
  for (int32_t i = 0; i < bytes; i += 64) __builtin_prefetch(row + i, 0, kLocality);
}

/// panel [dims][kPanel] = transpose of kPanel rows of `dims` floats each; dims is a multiple of kLanes.
void transpose_panel(const float* const* rows, int32_t dims, float* panel) {
  for (int32_t d = 0; d < dims; d += kLanes) {
    for (int32_t r = 0; r < kPanel; r += kLanes) transpose_block(rows + r, d, panel + int64_t(d) * kPanel + r, kPanel);
  }
}

/// Column `key` of every V panel = row [dims], cut into pieces of kPanel; dims is a multiple of kPanel.
void store_panels(const float* row, int32_t dims, float* panels, int64_t panel_stride, int32_t key) {
  float* dst = panels + int64_t(key) * kPanel;
  for (int32_t d = 0; d < dims; d += kPanel, dst += panel_stride) {
    for (int32_t j = 0; j < kPanel; j += kLanes) store(dst + j, load(row + d + j));
  }
}

}  // namespace
}  // namespace kvloom::cpu::KVLOOM_TARGET
