// Where attention runs.
#pragma once

#include "kvloom/base/platform.h"

namespace kvloom {

/// `cuda`: an NVIDIA GPU; all tensors of a run are then in its memory. `automatic`: a GPU if there is one that runs the spec, else the
/// CPU; Engine::backend() says which it was.
enum class Backend : int32_t { cpu = 0, cuda = 1, automatic = 2 };

constexpr const char* name_of(Backend b) { return b == Backend::cpu ? "cpu" : b == Backend::cuda ? "cuda" : "automatic"; }

}  // namespace kvloom
