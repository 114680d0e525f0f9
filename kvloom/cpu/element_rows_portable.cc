#include "kvloom/cpu/element_rows.h"
#define KVLOOM_TARGET portable
#include "kvloom/cpu/simd_portable.h"

#include "kvloom/cpu/element_rows.inl"
