// The GPUs of this machine, through their primary contexts (the ones that frameworks use), and what is owned in them. Every call here puts
// the caller's current context back.
#pragma once

#include "kvloom/jit/driver.h"
#include "kvloom/runtime/gpu_target.h"

#include <string>
#include <vector>

namespace kvloom::runtime {

class Device {
 public:
  /// GPUs of this machine; 0 with the reason in `why`.
  static int32_t count(std::string& why);
  /// Device `ordinal`, its primary context retained for the life of the process. Throws unsupported (no driver) or invalid_argument.
  static const Device& get(int32_t ordinal);
  /// The same; below 0: the device of the calling thread's current context, else device 0.
  static const Device& chosen(int32_t ordinal);

  const GpuTarget& target() const { return target_; }
  int64_t memory_bytes() const { return memory_bytes_; }
  int32_t clock_khz() const { return clock_khz_; }
  int64_t l2_bytes() const { return l2_bytes_; }
  jit::CuContext context() const { return context_; }

 private:
  explicit Device(int32_t ordinal);
  GpuTarget target_;
  int64_t memory_bytes_ = 0, l2_bytes_ = 0;
  int32_t clock_khz_ = 0;
  jit::CuContext context_ = nullptr;
};

/// Makes a device's context current, and the caller's own again at its end.
class ContextGuard {
 public:
  explicit ContextGuard(const Device& device);
  ~ContextGuard();
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

 private:
  bool pushed_ = false;
};

/// A block of device memory. Freed when its last user's work is done: freeing waits for the device.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  /// `what`: for the message. Throws out_of_memory: bytes needed and free.
  DeviceMemory(const Device& device, int64_t bytes, const char* what);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept { swap(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept { return swap(other), *this; }

  char* data() const { return reinterpret_cast<char*>(address_); }
  jit::CuAddress address() const { return address_; }
  int64_t size() const { return bytes_; }

 private:
  void swap(DeviceMemory& other);
  const Device* device_ = nullptr;
  jit::CuAddress address_ = 0;
  int64_t bytes_ = 0;
};

/// Page-locked host memory: what asynchronous copies read.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  PinnedMemory(const Device& device, int64_t bytes, const char* what);
  ~PinnedMemory();
  PinnedMemory(PinnedMemory&& other) noexcept { swap(other); }
  PinnedMemory& operator=(PinnedMemory&& other) noexcept { return swap(other), *this; }

  char* data() const { return static_cast<char*>(data_); }

 private:
  void swap(PinnedMemory& other);
  const Device* device_ = nullptr;
  void* data_ = nullptr;
};

/// A point in a stream. Recorded again and again.
class Event {
 public:
  Event() = default;
  explicit Event(const Device& device, bool timing = false);
  ~Event();
  Event(Event&& other) noexcept { swap(other); }
  Event& operator=(Event&& other) noexcept { return swap(other), *this; }

  jit::CuEvent handle() const { return event_; }
  void record(jit::CuStream stream);
  /// Blocks the host until the last record() is reached; at once where there was none.
  void wait() const;

 private:
  void swap(Event& other);
  const Device* device_ = nullptr;
  jit::CuEvent event_ = nullptr;
  bool recorded_ = false;
};

/// Where an address lies, as the driver knows it.
enum class MemoryPlace { host, pinned, device };
struct PointerPlace {
  MemoryPlace memory = MemoryPlace::host;
  bool managed = false;  // `device` memory that moves to whoever reads it
  int32_t device = -1;   // `device` memory: ordinal
};
PointerPlace place_of(const void* address);

}  // namespace kvloom::runtime
