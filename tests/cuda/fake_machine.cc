#include "tests/cuda/fake_machine.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <mutex>

namespace kvloom::test::fake {
namespace {

constexpr size_t kPage = 4096;

Stream default_stream;
int open_depth = 0;
int context_tags[kDevices];

/// All device memory.
void touch(bool allowed) {
  for (auto& [address, b] : blocks) {
    if (!b.pinned) mprotect(reinterpret_cast<void*>(address), b.mapped, allowed ? PROT_READ | PROT_WRITE : PROT_NONE);
  }
}

}  // namespace

std::map<uintptr_t, Block> blocks;
long long free_bytes = kDeviceBytes;
thread_local std::vector<CuContext> contexts;

void keep_for_good(void* p) {
  static std::mutex mutex;
  static auto* const all = new std::vector<void*>;
  const std::lock_guard lock(mutex);
  all->push_back(p);
}

CuContext context_of(int device) { return reinterpret_cast<CuContext>(&context_tags[device]); }
int current_device() { return contexts.empty() ? 0 : int(reinterpret_cast<int*>(contexts.back()) - context_tags); }
Stream* of(CuStream s) { return s == nullptr ? &default_stream : reinterpret_cast<Stream*>(s); }

Open::Open() {
  if (open_depth++ == 0) touch(true);
}
Open::~Open() {
  if (--open_depth == 0) touch(false);
}

void drain(Stream& s, FakeEvent* until, long long number) {
  if (s.queue.empty()) return;
  const Open open;
  while (!s.queue.empty() && !(until != nullptr && until->done >= number)) {
    Operation op = std::move(s.queue.front());
    s.queue.pop_front();
    if (op.waits != nullptr && op.waits->done < op.number) drain(*op.other, op.waits, op.number);
    if (op.work) op.work();
    if (op.reaches != nullptr) op.reaches->done = std::max(op.reaches->done, op.number);
  }
}
std::vector<Stream*>& all_streams() {
  static std::vector<Stream*> list{&default_stream};
  return list;
}
void drain_all() {
  for (Stream* s : all_streams()) drain(*s);
}
bool anything_capturing() {
  for (Stream* s : all_streams()) {
    if (s->capturing) return true;
  }
  return false;
}
thread_local CuCaptureMode thread_mode = kCuCaptureModeGlobal;
bool spoils_a_capture() {
  bool any = false;
  if (thread_mode == kCuCaptureModeRelaxed) return false;
  for (Stream* s : all_streams()) {
    if (!s->capturing || s->mode == kCuCaptureModeRelaxed) continue;
    const bool others = s->mode == kCuCaptureModeGlobal && thread_mode == kCuCaptureModeGlobal;
    if (others || s->captured_by == std::this_thread::get_id()) any = s->spoiled = true;
  }
  return any;
}
void put(CuStream stream, Operation op) {
  Stream* s = of(stream);
  if (s->capturing) {
    s->captured.push_back(std::move(op));
  } else {
    s->queue.push_back(std::move(op));
  }
}
CuResult allocate(size_t bytes, bool pinned, uintptr_t& address) {
  if (anything_capturing()) return kCaptureUnsupported;
  if (!pinned && (long long)bytes > free_bytes) return kCuOutOfMemory;
  const size_t mapped = (bytes + kPage - 1) / kPage * kPage;
  void* p = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  address = reinterpret_cast<uintptr_t>(p);
  blocks[address] = {bytes, mapped, pinned, current_device()};
  if (!pinned) {
    std::memset(p, 0xff, mapped);
    if (open_depth == 0) mprotect(p, mapped, PROT_NONE);
    free_bytes -= (long long)bytes;
  }
  return kCuSuccess;
}
CuResult release(uintptr_t address) {
  const auto at = blocks.find(address);
  if (at == blocks.end()) return kInvalid;
  drain_all();
  munmap(reinterpret_cast<void*>(address), at->second.mapped);
  if (!at->second.pinned) free_bytes += (long long)at->second.bytes;
  blocks.erase(at);
  return kCuSuccess;
}

}  // namespace kvloom::test::fake
