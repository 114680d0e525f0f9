// Our declarations of cuBLASLt against the toolkit's own, where there is one. Without it the values stand as the API publishes them.
#include "cli/bench/cublaslt.h"

#include <gtest/gtest.h>

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>

#include <cstddef>
#include <type_traits>

namespace kvloom::cli::cublaslt {
namespace {

static_assert(kSuccess == CUBLAS_STATUS_SUCCESS && kReal32 == CUDA_R_32F && kRealBf16 == CUDA_R_16BF && kCompute32 == CUBLAS_COMPUTE_32F);
static_assert(kPlain == CUBLAS_OP_N && kTransposed == CUBLAS_OP_T && kTransposeA == CUBLASLT_MATMUL_DESC_TRANSA &&
              kMostWorkspace == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t) && sizeof(Heuristic) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(Heuristic, workspace_bytes) == offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize) &&
              offsetof(Heuristic, status) == offsetof(cublasLtMatmulHeuristicResult_t, state));
static_assert(sizeof(cublasComputeType_t) == sizeof(int) && sizeof(cudaDataType_t) == sizeof(int) && sizeof(cublasStatus_t) == sizeof(int));

}  // namespace
}  // namespace kvloom::cli::cublaslt
#endif

// Where there is no GPU, cuBLASLt does not start, and leaves some bytes of its own behind.
extern "C" const char* __lsan_default_suppressions() { return "leak:libcublasLt"; }

namespace kvloom::cli {
namespace {

// One of the two always holds, and never silently.
TEST(CublasLt, IsThereOrSaysWhyNot) {
  std::string why;
  const std::unique_ptr<CublasLt> library = CublasLt::find(why);
  if (library) {
    EXPECT_NE(library->path().find("cublasLt"), std::string::npos);
    EXPECT_NE(library->version(), "");
  } else {
    EXPECT_NE(why.find("KVLOOM_CUBLASLT; tried: "), std::string::npos) << why;
  }
}

}  // namespace
}  // namespace kvloom::cli
