// What the fake driver acts on: streams, whose work is done when somebody waits for it, and memory, which is closed outside of such work.
#pragma once

#include "kvloom/jit/driver_types.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <thread>
#include <vector>

namespace kvloom::test::fake {

using namespace kvloom::jit;

constexpr CuResult kInvalid = 1, kNotPermitted = 800, kCaptureUnsupported = 900, kCaptureInvalidated = 901, kNotFound = 500, kIllegalInstruction = 715;
constexpr int kDevices = 2;
constexpr long long kDeviceBytes = 1LL << 34;

/// Things that live as long as the process, where a leak checker finds them.
void keep_for_good(void* p);
template <class T>
T keep(T p) {
  return keep_for_good(reinterpret_cast<void*>(p)), p;
}

struct Stream;
struct FakeEvent {
  Stream* stream = nullptr;
  long long recorded = 0;  // records put into streams
  long long done = 0;      // of those, reached
};
struct Operation {
  std::function<void()> work;
  FakeEvent* reaches = nullptr;  // a record
  long long number = 0;
  FakeEvent* waits = nullptr;  // a wait, for record `number` of that event in `other`
  Stream* other = nullptr;
};
struct Stream {
  std::deque<Operation> queue;
  bool capturing = false;
  bool spoiled = false;  // the capture, by a call that none allows
  CuCaptureMode mode = kCuCaptureModeGlobal;
  std::thread::id captured_by;
  std::vector<Operation> captured;
};
struct Block {
  size_t bytes, mapped;
  bool pinned;
  int device;
};

extern std::map<uintptr_t, Block> blocks;  // by address
extern long long free_bytes;               // of a device
extern thread_local std::vector<CuContext> contexts;

CuContext context_of(int device);
int current_device();

Stream* of(CuStream s);
std::vector<Stream*>& all_streams();
bool anything_capturing();
/// Whether a call that may wait for the device spoils a capture of this moment: a global one, or one of this thread that is not relaxed, unless the
/// calling thread is relaxed.
bool spoils_a_capture();
extern thread_local CuCaptureMode thread_mode;
void put(CuStream stream, Operation op);
/// Does what is in the stream; with `until`, no more than record `number` of it needs.
void drain(Stream& s, FakeEvent* until = nullptr, long long number = 0);
void drain_all();

/// Device memory is open while work is done, and only then.
struct Open {
  Open();
  ~Open();
};
CuResult allocate(size_t bytes, bool pinned, uintptr_t& address);
CuResult release(uintptr_t address);

}  // namespace kvloom::test::fake
