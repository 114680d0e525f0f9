// Memory of this process and this machine, as Linux counts it.
#pragma once

#include <cstdint>

namespace kvloom::replay {

/// Bytes that can be taken without swapping; 0 if unknown.
int64_t available_memory();

/// Starts the peak of this process's resident memory anew (a no-op where the kernel does not allow it).
void reset_peak_rss();
/// Bytes; since the last reset.
int64_t peak_rss();

}  // namespace kvloom::replay
