// The plain softmax: no hook at all. Causal order, windows and prefixes are data (KeyRange), so they need no variant of their own.
#pragma once

#include "kvloom/contract/variant.h"

namespace kvloom::variants {

struct Plain {};

}  // namespace kvloom::variants
