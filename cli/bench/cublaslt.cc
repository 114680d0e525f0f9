#include "cli/bench/cublaslt.h"

#include "kvloom/support/check.h"
#include "kvloom/support/cuda_library.h"

namespace kvloom::cli {
namespace {

constexpr int kAskedWays = 4;

/// "" or the first entry that is missing.
std::string load(const SharedLibrary& l, cublaslt::Entries& e) {
  std::string missing;
  l.find(e.version, "cublasLtGetVersion", missing);
  l.find(e.status_string, "cublasLtGetStatusString", missing);
  l.find(e.create, "cublasLtCreate", missing);
  l.find(e.destroy, "cublasLtDestroy", missing);
  l.find(e.matmul_create, "cublasLtMatmulDescCreate", missing);
  l.find(e.matmul_set, "cublasLtMatmulDescSetAttribute", missing);
  l.find(e.matmul_destroy, "cublasLtMatmulDescDestroy", missing);
  l.find(e.layout_create, "cublasLtMatrixLayoutCreate", missing);
  l.find(e.layout_destroy, "cublasLtMatrixLayoutDestroy", missing);
  l.find(e.preference_create, "cublasLtMatmulPreferenceCreate", missing);
  l.find(e.preference_set, "cublasLtMatmulPreferenceSetAttribute", missing);
  l.find(e.preference_destroy, "cublasLtMatmulPreferenceDestroy", missing);
  l.find(e.heuristic, "cublasLtMatmulAlgoGetHeuristic", missing);
  l.find(e.matmul, "cublasLtMatmul", missing);
  return missing;
}

}  // namespace

bool CublasLt::open(const std::string& path, std::string& why) {
  library_ = SharedLibrary::open(path, why);
  if (!library_) return false;
  const std::string missing = load(library_, entries_);
  if (!missing.empty()) return why = kvloom::format("{}: has no {}", path, missing), false;
  const std::string found = SharedLibrary::path_of(reinterpret_cast<const void*>(entries_.version));
  path_ = found.empty() ? path : found;
  // Not made to be closed once it has begun: what it set up, and what is left of a start that failed, is its own.
  library_.keep_open();
  const int status = entries_.create(&handle_);
  if (status == cublaslt::kSuccess) return true;
  why = kvloom::format("{}: version {} does not start: {}: {}", path_, version(), status, entries_.status_string(status));
  return handle_ = nullptr, false;
}

std::unique_ptr<CublasLt> CublasLt::find(std::string& why) {
  std::string tried;
  for (const std::string& path :
       library_paths({"KVLOOM_CUBLASLT", {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}, "cublas"})) {
    auto library = std::make_unique<CublasLt>();
    std::string reason;
    if (library->open(path, reason)) return library;
    if (tried.find(reason) == std::string::npos) tried += (tried.empty() ? "" : "; ") + reason;  // several paths lead to one file
  }
  why = kvloom::format(
      "no cuBLASLt that runs here was found; install it (it comes with CUDA, and with the Python package nvidia-cublas), or name its file "
      "or folder in KVLOOM_CUBLASLT; tried: {}",
      tried);
  return nullptr;
}

CublasLt::~CublasLt() {
  if (handle_ != nullptr) entries_.destroy(handle_);
}

std::string CublasLt::version() const {
  const size_t v = entries_.version();
  return kvloom::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100);
}

void CublasLt::check(int status, const char* call) const {
  if (status == cublaslt::kSuccess) return;
  fail(ErrorCode::io, "bench: {}: got error {}: {}, wanted success ({}); name another cuBLASLt in KVLOOM_CUBLASLT", call, status,
       entries_.status_string(status), path_);
}

SquareMatmul::SquareMatmul(const CublasLt& library, int64_t n, int64_t workspace_bytes) : SquareMatmul(library) {
  const cublaslt::Entries& e = library.entries();
  library.check(e.layout_create(&layout_, cublaslt::kRealBf16, uint64_t(n), uint64_t(n), n), "cublasLtMatrixLayoutCreate");
  library.check(e.preference_create(&preference_), "cublasLtMatmulPreferenceCreate");
  const size_t most = size_t(workspace_bytes);
  library.check(e.preference_set(preference_, cublaslt::kMostWorkspace, &most, sizeof most), "cublasLtMatmulPreferenceSetAttribute");
  for (const int32_t a : {cublaslt::kTransposed, cublaslt::kPlain}) {
    cublaslt::Matmul& matmul = matmuls_[a];
    library.check(e.matmul_create(&matmul, cublaslt::kCompute32, cublaslt::kReal32), "cublasLtMatmulDescCreate");
    library.check(e.matmul_set(matmul, cublaslt::kTransposeA, &a, sizeof a), "cublasLtMatmulDescSetAttribute");
    cublaslt::Heuristic found[kAskedWays] = {};
    int count = 0;
    const int status = e.heuristic(library.handle(), matmul, layout_, layout_, layout_, layout_, preference_, kAskedWays, found, &count);
    library.check(status, "cublasLtMatmulAlgoGetHeuristic");
    for (int i = 0; i < count; ++i) {
      if (found[i].status == cublaslt::kSuccess) ways_.push_back({matmul, found[i].algorithm, found[i].workspace_bytes});
    }
  }
}

SquareMatmul::~SquareMatmul() {
  const cublaslt::Entries& e = library_.entries();
  for (const cublaslt::Matmul m : matmuls_) {
    if (m != nullptr) e.matmul_destroy(m);
  }
  if (preference_ != nullptr) e.preference_destroy(preference_);
  if (layout_ != nullptr) e.layout_destroy(layout_);
}

void SquareMatmul::run(int way, const void* a, const void* b, void* d, void* workspace, void* stream) const {
  const cublaslt::Entries& e = library_.entries();
  const Way& w = ways_[size_t(way)];
  const float one = 1.0f, zero = 0.0f;
  library_.check(e.matmul(library_.handle(), w.matmul, &one, a, layout_, b, layout_, &zero, d, layout_, d, layout_, &w.algorithm, workspace,
                          w.workspace_bytes, stream),
                 "cublasLtMatmul");
}

}  // namespace kvloom::cli
