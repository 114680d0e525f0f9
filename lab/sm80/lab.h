// What the programs of the lab share: units, and where they run.
#pragma once

#include "kvloom/contract/attend_args.h"
#include "kvloom/contract/unit_facts.h"

#include <cstdint>
#include <string>
#include <vector>

namespace lab {
using kvloom::DType;

struct UnitInfo {
  const char* name;
  int qk, vo;
  DType q, kv, o;
  bool paged, fixed, alibi, softcap, mask, sigmoid;
  int rope;  // RopeMode
  const char* user = nullptr;  // file of a user's variant; on the emulator alone, which reads parameters where they lie
};
const std::vector<UnitInfo>& all_units();

enum Kind { memory = 0, compute = 1, mixed = 2 };
constexpr const char* kKindNames[] = {"attend_memory", "attend_compute", "attend_mixed"};

/// A unit ready to run.
class Unit {
 public:
  virtual ~Unit() = default;
  kvloom::KernelFacts facts[3] = {};  // by Kind
  struct Tile {
    int32_t rows, keys;
  };
  Tile tiles[2] = {};  // by class: of attend_memory, attend_compute
  bool early = false;  // programmatic dependent launch: behind the launch before, without waiting for its end
  virtual void launch(Kind kind, const kvloom::AttendArgs& args, int ctas) = 0;
};

/// Memory that units can reach. Contents go there and back by copies.
class Machine {
 public:
  virtual ~Machine() = default;
  virtual Unit& unit(const std::string& name) = 0;
  virtual void* upload(const void* data, int64_t bytes) = 0;  // until release()
  virtual void download(void* to, const void* from, int64_t bytes) = 0;
  virtual void finish() = 0;  // launches so far
  virtual void release() = 0;
  virtual int sms() const = 0;
};
Machine& machine();

}  // namespace lab
