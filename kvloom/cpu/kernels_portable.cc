// The kernels for any processor. This file is compiled with its own instruction set: nothing in it may have external linkage but what is
// declared in kvloom::cpu::portable.
#define KVLOOM_TARGET portable
#include "kvloom/cpu/simd_portable.h"

#include "kvloom/cpu/row_ops.inl"
#include "kvloom/cpu/score.inl"
#include "kvloom/cpu/tile.inl"
