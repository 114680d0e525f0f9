#include "simt.h"

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <vector>

simt::Dim threadIdx, blockIdx, blockDim, gridDim;
alignas(1024) char kvloom_shared[256 * 1024];

// Saves what the ABI says a callee must, and goes on where `to` left off.
asm(R"(
.text
.globl simt_switch
simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
extern "C" void simt_switch(void** save, void* to);

namespace simt {
namespace {
constexpr size_t kStack = 256 * 1024;

struct Copy {
  uint32_t to;
  const void* from;
  uint32_t bytes, total;
};
struct Fiber {
  void* sp = nullptr;
  std::unique_ptr<char[]> stack{new char[kStack]};
  std::deque<std::vector<Copy>> groups;
  std::vector<Copy> open;
  std::vector<Box> stores;
  bool done = false;
};
struct Meeting {
  int arrived = 0;
  uint64_t generation = 0;
};
struct Warp {
  Meeting all, quad[8], other;
  Buffer buffer[2][32];
  uint64_t uses[32] = {};
};

/// An mbarrier, kept beside shared memory: programs have its address alone.
struct Phased {
  uint32_t count = 0, pending = 0;
  uint64_t phase = 0;
  std::deque<std::vector<Copy>> landing;  // copies whose landing is an arrival
  int64_t bytes = 0;                      // that the phase waits for, beside arrivals
  std::deque<Box> boxes;

  void complete() {
    if (pending == 0 && bytes == 0) pending = count, ++phase;
  }
  void arrive() {
    if (pending == 0) std::printf("simt: more arrivals than a phase has\n"), std::abort();
    --pending;
    complete();
  }
};

std::map<uint32_t, Phased> barriers;
std::vector<Fiber> fibers;
std::vector<Warp> warps;
Meeting block;
std::map<int, Meeting> named;
void* scheduler_sp;
int current, running;
void (*entry)(const void*);
const void* entry_args;

void yield() {
  const int me = current;
  int next = me;
  do next = next + 1 == int(fibers.size()) ? 0 : next + 1;
  while (fibers[next].done);
  if (next == me) return;
  current = next;
  threadIdx.x = uint32_t(next);
  simt_switch(&fibers[me].sp, fibers[next].sp);
}

void meet(Meeting& m, int count) {
  if (++m.arrived == count) {
    m.arrived = 0;
    ++m.generation;
    return;
  }
  const uint64_t before = m.generation;
  for (long spins = 0; m.generation == before; ++spins) {
    if (spins > 20000000) std::printf("simt: a barrier that never fills\n"), std::abort();
    yield();
  }
}

void fiber_main() {
  entry(entry_args);
  Fiber& me = fibers[current];
  me.done = true;
  for (auto& g : me.groups) if (!g.empty()) std::printf("simt: copies under way at exit\n"), std::abort();
  if (--running == 0) {
    void* dead;
    simt_switch(&dead, scheduler_sp);
  }
  yield();
  std::abort();
}
}  // namespace

void block_barrier() { meet(block, int(blockDim.x)); }
void warp_barrier(uint32_t mask) {
  Warp& w = warps[threadIdx.x / 32];
  if (mask == 0xffffffffu) return meet(w.all, 32);
  meet(w.quad[__builtin_ctz(mask) / 4], __builtin_popcount(mask));
}
const Buffer* warp_share(const void* mine, size_t bytes, uint32_t mask) {
  Warp& w = warps[threadIdx.x / 32];
  const int lane = int(threadIdx.x & 31);
  Buffer* side = w.buffer[w.uses[lane]++ & 1];
  std::memcpy(side[lane].bytes, mine, bytes);
  warp_barrier(mask);
  return side;
}

void copy_later(uint32_t to, const void* from, uint32_t bytes, uint32_t total) { fibers[current].open.push_back({to, from, bytes, total}); }
void commit_copies() {
  Fiber& f = fibers[current];
  f.groups.push_back(std::move(f.open));
  f.open.clear();
}
void land(const std::vector<Copy>& copies);
void wait_copies(int pending) {
  Fiber& f = fibers[current];
  while (int(f.groups.size()) > pending) {
    land(f.groups.front());
    f.groups.pop_front();
  }
}

void land(const std::vector<Copy>& copies) {
  for (const Copy& c : copies) {
    char* to = shared(c.to);
    std::memset(to, 0, c.total);
    if (c.bytes) std::memcpy(to, c.from, c.bytes);
  }
}
void barrier_init(uint32_t barrier, uint32_t count) {
  if (barriers.count(barrier)) std::printf("simt: a barrier made where there is one\n"), std::abort();
  barriers[barrier] = {count, count, 0, {}};
}
void barrier_end(uint32_t barrier) {
  if (!barriers.at(barrier).landing.empty()) std::printf("simt: a barrier ended before its copies landed\n"), std::abort();
  barriers.erase(barrier);
}
void barrier_arrive(uint32_t barrier) { barriers.at(barrier).arrive(); }
void arrive_after_copies(uint32_t barrier) {
  Fiber& f = fibers[current];
  barriers.at(barrier).landing.push_back(std::move(f.open));
  f.open.clear();
}
/// Elements outside the tensor are zeros, or not written if `out`. Sixteen bytes at a time, which are never apart.
uint32_t land(const Box& b, bool out = false) {
  uint32_t at = b.to, n[5];
  for (n[4] = 0; n[4] < b.box[4]; ++n[4]) for (n[3] = 0; n[3] < b.box[3]; ++n[3]) for (n[2] = 0; n[2] < b.box[2]; ++n[2]) for (n[1] = 0; n[1] < b.box[1]; ++n[1]) {
    for (n[0] = 0; n[0] < b.box[0]; n[0] += uint32_t(16 / b.strides[0]), at += 16) {
      const char* from = b.base;
      bool inside = true;
      for (int i = 0; i < 5; ++i) {
        const int64_t x = int64_t(b.at[i]) + n[i];
        inside = inside && x >= 0 && x < int64_t(b.dims[i]);
        from += x * int64_t(b.strides[i]);
      }
      char* to = shared(b.swizzle ? at ^ ((at >> 7 & (b.swizzle / 16 - 1)) << 4) : at);
      if (out) {
        if (inside) std::memcpy(const_cast<char*>(from), to, 16);
      } else if (inside) std::memcpy(to, from, 16);
      else std::memset(to, 0, 16);
    }
  }
  return at - b.to;
}
void land_all(Phased& b) {
  while (!b.boxes.empty()) {
    b.bytes -= land(b.boxes.front());
    b.boxes.pop_front();
    b.complete();
  }
  while (!b.landing.empty()) {
    land(b.landing.front());
    b.landing.pop_front();
    b.arrive();
  }
}
void barrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  Phased& b = barriers.at(barrier);
  b.bytes += bytes;
  b.arrive();
}
void box_later(const Box& box, uint32_t barrier) {
  if (box.to % 128 != 0) std::printf("simt: a box to byte %u of shared memory, wanted a multiple of 128\n", box.to), std::abort();
  barriers.at(barrier).boxes.push_back(box);
}
/// As late as can be.
void store_later(const Box& box) {
  if (box.to % 128 != 0) std::printf("simt: a box from byte %u of shared memory, wanted a multiple of 128\n", box.to), std::abort();
  fibers[current].stores.push_back(box);
}
void store_wait() {
  for (const Box& b : fibers[current].stores) land(b, true);
  fibers[current].stores.clear();
}
void named_barrier(int id, int threads) { meet(named[id], threads); }
/// Copies have landed by every second look, so that both answers occur.
bool barrier_test(uint32_t barrier, uint32_t parity) {
  static bool late = false;
  Phased& b = barriers.at(barrier);
  if (late = !late; late) land_all(b);
  return (b.phase & 1) != parity;
}
void barrier_wait(uint32_t barrier, uint32_t parity) {
  Phased& b = barriers.at(barrier);
  for (long spins = 0; (b.phase & 1) == parity; ++spins) {
    land_all(b);
    if ((b.phase & 1) != parity) return;
    if (spins > 20000000) std::printf("simt: a phase that never completes\n"), std::abort();
    yield();
  }
}

char* shared(uint32_t address) {
  if (address >= sizeof kvloom_shared) std::printf("simt: shared address %u\n", address), std::abort();
  return kvloom_shared + address;
}
uint32_t shared_address(const void* p) { return uint32_t(static_cast<const char*>(p) - kvloom_shared); }

void launch(void (*kernel)(const void*), const void* args, int ctas, int threads, int shared_bytes) {
  if (int(fibers.size()) != threads) fibers = std::vector<Fiber>(size_t(threads));
  entry = kernel;
  entry_args = args;
  blockDim.x = uint32_t(threads);
  gridDim.x = uint32_t(ctas);
  for (int cta = 0; cta < ctas; ++cta) {
    blockIdx.x = uint32_t(cta);
    std::memset(kvloom_shared, 0xff, sizeof kvloom_shared);
    warps = std::vector<Warp>(size_t(threads / 32));
    block = {};
    named.clear();
    barriers.clear();
    running = threads;
    for (Fiber& f : fibers) {
      f.done = false;
      f.groups.clear();
      f.open.clear();
      void** top = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(f.stack.get()) + kStack) & ~uintptr_t(63));
      top -= 2;
      *top = reinterpret_cast<void*>(fiber_main);  // returned to with the stack as after a call
      f.sp = top - 6;
    }
    current = 0;
    threadIdx.x = 0;
    simt_switch(&scheduler_sp, fibers[0].sp);
    for (int i = shared_bytes; i < int(sizeof kvloom_shared); ++i) {
      if (kvloom_shared[i] != char(0xff)) std::printf("simt: shared memory written at %d, past %d\n", i, shared_bytes), std::abort();
    }
  }
}
}  // namespace simt
