// cuBLASLt, opened at run time: the matmul that compute-bound figures stand beside. The few entries that are called are declared by us.
#pragma once

#include "kvloom/support/shared_library.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kvloom::cli {

/// Types and values of its interface, as it publishes them; a test compares them with cublasLt.h where that is installed.
namespace cublaslt {

using Handle = struct HandleTag*;
using Matmul = struct MatmulTag*;
using Layout = struct LayoutTag*;
using Preference = struct PreferenceTag*;

constexpr int kSuccess = 0;
constexpr int kReal32 = 0, kRealBf16 = 14;  // cudaDataType_t
constexpr int kCompute32 = 68;
constexpr int kPlain = 0, kTransposed = 1;
constexpr int kTransposeA = 3, kTransposeB = 4;  // attributes of a matmul
constexpr int kMostWorkspace = 1;                // attribute of a preference

struct Algorithm {
  uint64_t data[8];
};
struct Heuristic {
  Algorithm algorithm;
  size_t workspace_bytes;
  int status;
  float waves;
  int reserved[4];
};

/// Entry points, named as in the API without the prefix; all but version() give a status.
struct Entries {
  size_t (*version)() = nullptr;
  const char* (*status_string)(int) = nullptr;
  int (*create)(Handle*) = nullptr;
  int (*destroy)(Handle) = nullptr;
  int (*matmul_create)(Matmul*, int compute, int scale_type) = nullptr;
  int (*matmul_set)(Matmul, int attribute, const void* value, size_t bytes) = nullptr;
  int (*matmul_destroy)(Matmul) = nullptr;
  int (*layout_create)(Layout*, int type, uint64_t rows, uint64_t columns, int64_t leading) = nullptr;
  int (*layout_destroy)(Layout) = nullptr;
  int (*preference_create)(Preference*) = nullptr;
  int (*preference_set)(Preference, int attribute, const void* value, size_t bytes) = nullptr;
  int (*preference_destroy)(Preference) = nullptr;
  int (*heuristic)(Handle, Matmul, Layout a, Layout b, Layout c, Layout d, Preference, int asked, Heuristic*, int* got) = nullptr;
  int (*matmul)(Handle, Matmul, const void* alpha, const void* a, Layout, const void* b, Layout, const void* beta, const void* c, Layout,
                void* d, Layout, const Algorithm*, void* workspace, size_t bytes, void* stream) = nullptr;
};

}  // namespace cublaslt

class CublasLt {
 public:
  /// Opened and started in the current context (GpuContext); nullptr: `why` says where was looked and the remedy.
  static std::unique_ptr<CublasLt> find(std::string& why);
  ~CublasLt();

  const std::string& path() const { return path_; }
  /// "13.1.0"
  std::string version() const;
  const cublaslt::Entries& entries() const { return entries_; }
  cublaslt::Handle handle() const { return handle_; }
  /// Throws Error(io) with the library's words unless `status` is success.
  void check(int status, const char* call) const;

 private:
  bool open(const std::string& path, std::string& why);

  SharedLibrary library_;
  cublaslt::Entries entries_;
  cublaslt::Handle handle_ = nullptr;
  std::string path_;
};

/// D = A B of square matrices of bf16 with fp32 sums, in the ways that the library's heuristic names, best guess first, for A as it is and
/// for A transposed in memory.
class SquareMatmul {
 public:
  SquareMatmul(const CublasLt& library, int64_t n, int64_t workspace_bytes);
  ~SquareMatmul();
  SquareMatmul(const SquareMatmul&) = delete;
  SquareMatmul& operator=(const SquareMatmul&) = delete;

  int ways() const { return int(ways_.size()); }
  /// Puts one into `stream`.
  void run(int way, const void* a, const void* b, void* d, void* workspace, void* stream) const;

 private:
  struct Way {
    cublaslt::Matmul matmul;
    cublaslt::Algorithm algorithm;
    size_t workspace_bytes;
  };
  explicit SquareMatmul(const CublasLt& library) : library_(library) {}

  const CublasLt& library_;
  cublaslt::Layout layout_ = nullptr;  // of all three: square, column-major
  cublaslt::Preference preference_ = nullptr;
  cublaslt::Matmul matmuls_[2] = {nullptr, nullptr};
  std::vector<Way> ways_;
};

}  // namespace kvloom::cli
