#include "kvloom/runtime/gpu_target.h"

#include "kvloom/jit/compile.h"
#include "kvloom/support/format.h"

#include <cstdlib>

namespace kvloom::runtime {
namespace {

struct Chip {
  int32_t capability;
  int32_t num_sms;
  int32_t shared_block;  // KiB that a CTA may have (CUDA programming guide, compute capabilities)
  int32_t shared_sm;
  const char* name;
};
constexpr Chip kChips[] = {
    {80, 108, 163, 164, "A100"},       {86, 84, 99, 100, "A10, A40"}, {87, 16, 163, 164, "Orin"},   {89, 142, 99, 100, "L40"},
    {90, 132, 227, 228, "H100, H200"}, {100, 148, 227, 228, "B200"},  {103, 160, 227, 228, "B300"}, {120, 188, 99, 100, "RTX PRO 6000"},
};

struct Roofs {
  int32_t capability;
  GpuRoofs roofs;
};
constexpr Roofs kRoofs[] = {
    {80, {"A100 80GB", 312.0, 2039.0}},     {86, {"A40", 149.7, 696.0}}, {89, {"L40", 181.0, 864.0}},
    {90, {"H200", 537.3, 4598.0, true, 820.0}},  // docs/PERFORMANCE.md
    {120, {"RTX PRO 6000", 503.8, 1792.0}},
};

}  // namespace

GpuTarget typical_target(const std::string& arch, const char* where) {
  jit::check_arch(arch, where);
  GpuTarget t;
  t.arch = arch;
  t.capability = std::atoi(arch.c_str() + 3);
  const Chip* chip = &kChips[0];
  for (const Chip& c : kChips) {
    if (c.capability <= t.capability) chip = &c;  // the newest that is not newer
  }
  t.num_sms = chip->num_sms;
  t.shared_bytes_block = chip->shared_block * 1024;
  t.shared_bytes_sm = chip->shared_sm * 1024;
  t.name = chip->capability == t.capability ? chip->name : kvloom::format("a chip that is not known here: as {}", chip->name);
  return t;
}

GpuRoofs typical_roofs(int32_t capability) {
  for (const Roofs& r : kRoofs) {
    if (r.capability == capability) return r.roofs;
  }
  return {};
}

}  // namespace kvloom::runtime
