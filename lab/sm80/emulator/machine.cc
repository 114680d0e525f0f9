// The lab's machine on the CPU: units compiled with this folder's ptx room before the product's.
#include "../lab.h"
#include "simt.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>

#define UNIT(name)                                                                                                                \
  extern "C" void attend_memory_##name(const kvloom::AttendArgs);                                                                 \
  extern "C" void attend_compute_##name(const kvloom::AttendArgs);                                                                \
  extern "C" void attend_mixed_##name(const kvloom::AttendArgs);                                                                  \
  extern "C" kvloom::KernelFacts attend_memory_##name##_facts, attend_compute_##name##_facts, attend_mixed_##name##_facts; \
  extern "C" int32_t lab_tiles_##name[4];
#include "emulated.inc"
#undef UNIT

namespace lab {
namespace {
using Entry = void (*)(const kvloom::AttendArgs);
Entry running;

class EmulatedUnit : public Unit {
 public:
  EmulatedUnit(std::initializer_list<kvloom::KernelFacts> f, const int32_t (&t)[4], Entry a, Entry b, Entry c) : entry_{a, b, c} {
    std::copy(f.begin(), f.end(), facts);
    tiles[0] = {t[0], t[1]}, tiles[1] = {t[2], t[3]};
  }
  void launch(Kind kind, const kvloom::AttendArgs& args, int ctas) override {
    running = entry_[kind];
    simt::launch([](const void* a) { running(*static_cast<const kvloom::AttendArgs*>(a)); }, &args, ctas, facts[kind].threads, facts[kind].shared_bytes);
  }

 private:
  Entry entry_[3];
};

class Emulator : public Machine {
 public:
  Emulator() {
#define UNIT(name)                                                                                                                           \
  units_[#name] = std::make_unique<EmulatedUnit>(                                                                                            \
      std::initializer_list<kvloom::KernelFacts>{attend_memory_##name##_facts, attend_compute_##name##_facts, attend_mixed_##name##_facts}, \
      lab_tiles_##name, attend_memory_##name, attend_compute_##name, attend_mixed_##name);
#include "emulated.inc"
#undef UNIT
  }
  Unit& unit(const std::string& name) override { return *units_.at(name); }
  void* upload(const void* data, int64_t) override { return const_cast<void*>(data); }
  void download(void*, const void*, int64_t) override {}
  void finish() override {}
  void release() override {}
  int sms() const override { return 4; }

 private:
  std::map<std::string, std::unique_ptr<EmulatedUnit>> units_;
};
}  // namespace

Machine& machine() {
  static Emulator m;
  return m;
}
}  // namespace lab
