#include "kvloom/cpu/index_scan.h"
#define KVLOOM_TARGET portable
#include "kvloom/cpu/index_scan.inl"
