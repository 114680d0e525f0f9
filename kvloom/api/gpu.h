// GPUs, their memory and their streams, for programs that have no CUDA library of their own: the command-line tool, tests, examples.
// Engines do not need it: they take the addresses and streams of whatever library the caller uses. All calls wait, except those that name a
// stream.
#pragma once

#include "kvloom/base/platform.h"

#include <memory>
#include <string>
#include <vector>

namespace kvloom {

struct GpuInfo {
  int32_t device = 0;  // ordinal
  std::string name;    // "NVIDIA H200"
  std::string arch;    // "sm_90a"
  int32_t num_sms = 0;
  int32_t clock_khz = 0;
  int64_t memory_bytes = 0;
  int64_t l2_bytes = 0;
};

/// The GPUs of this machine; none: `why` (if given) says what is missing and what to do.
std::vector<GpuInfo> gpus(std::string* why = nullptr);
/// CUDA version of the driver (13000: 13.0); 0: there is none.
int32_t gpu_driver_version();
struct GpuMemory {
  int64_t free_bytes = 0, total_bytes = 0;
};
GpuMemory gpu_memory(int32_t device);
/// Waits for everything on the device. Throws io with the driver's words if a kernel failed.
void gpu_synchronize(int32_t device);

/// Makes a GPU's primary context the calling thread's while it lives: for libraries that work in whatever context is current.
class GpuContext {
 public:
  explicit GpuContext(int32_t device);
  ~GpuContext();
  GpuContext(const GpuContext&) = delete;
  GpuContext& operator=(const GpuContext&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A block of device memory, 256-byte aligned.
class GpuBuffer {
 public:
  GpuBuffer();
  /// Throws out_of_memory: bytes needed and free.
  GpuBuffer(int32_t device, int64_t bytes);
  ~GpuBuffer();
  GpuBuffer(GpuBuffer&&) noexcept;
  GpuBuffer& operator=(GpuBuffer&&) noexcept;

  char* data() const;
  int64_t size() const;
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data());
  }
  /// Bytes [offset, offset + bytes), which lie within the buffer: throws invalid_argument else.
  void upload(const void* from, int64_t bytes, int64_t offset = 0);
  void download(void* to, int64_t bytes, int64_t offset = 0) const;
  void fill(uint8_t value);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A stream, and what can be asked of it.
class GpuStream {
 public:
  explicit GpuStream(int32_t device);
  ~GpuStream();
  GpuStream(const GpuStream&) = delete;
  GpuStream& operator=(const GpuStream&) = delete;

  void* handle() const;  // a CUstream
  void synchronize();
  /// Everything after `other`'s work up to now.
  void wait_for(const GpuStream& other);
  void copy(void* to, const void* from, int64_t bytes);  // device to device
  void fill(void* to, uint8_t value, int64_t bytes);

  /// Milliseconds between two marks that were passed; mark() is put into the stream.
  int32_t mark();
  float milliseconds(int32_t from_mark, int32_t to_mark);
  void forget_marks();

  /// Work put into the stream from now on is recorded, not done. end_capture() ends that; launch() does it all again.
  void begin_capture();
  void end_capture();
  void launch();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A kernel of the program's own, compiled like the library's: CUDA C++ without a standard library; kvloom's headers may be included.
class GpuProgram {
 public:
  /// `name`: for messages and the cache. Errors: as for an engine; the compiler's log where the text does not compile.
  GpuProgram(int32_t device, const std::string& name, const std::string& text);
  ~GpuProgram();
  GpuProgram(const GpuProgram&) = delete;
  GpuProgram& operator=(const GpuProgram&) = delete;
  /// Puts `entry` (extern "C" __global__) into `stream`; `arguments`: the address of each.
  void launch(const char* entry, uint32_t grid, uint32_t block, std::vector<void*> arguments, GpuStream& stream);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvloom
