// cuBLASLt without a GPU: says that it multiplies only where it was asked for the matmul that is meant.
#include "cli/bench/cublaslt.h"

#include <cstdlib>
#include <cstring>

namespace {

using namespace kvloom::cli::cublaslt;

constexpr int kInvalid = 7;
long long matmuls = 0;

struct MatmulOf {
  int compute, scale;
  int32_t transpose_a = kPlain;
};
struct LayoutOf {
  int type;
  uint64_t rows, columns;
  int64_t leading;
};
struct PreferenceOf {
  size_t workspace = 0;
};
int handle_tag;

MatmulOf* of(Matmul m) { return reinterpret_cast<MatmulOf*>(m); }
LayoutOf* of(Layout l) { return reinterpret_cast<LayoutOf*>(l); }
PreferenceOf* of(Preference p) { return reinterpret_cast<PreferenceOf*>(p); }
bool square(Layout l) {
  const LayoutOf* s = of(l);
  return s->type == kRealBf16 && s->rows == s->columns && int64_t(s->rows) == s->leading;
}

}  // namespace

extern "C" {

long long fake_matmuls() { return matmuls; }

size_t cublasLtGetVersion() { return 130102; }
const char* cublasLtGetStatusString(int) { return "said by the fake cuBLASLt"; }
int cublasLtCreate(Handle* h) {
  const char* status = std::getenv("FAKE_CUBLASLT_CREATE");
  return *h = reinterpret_cast<Handle>(&handle_tag), status != nullptr ? std::atoi(status) : kSuccess;
}
int cublasLtDestroy(Handle) { return kSuccess; }
int cublasLtMatmulDescCreate(Matmul* m, int compute, int scale) {
  return *m = reinterpret_cast<Matmul>(new MatmulOf{compute, scale}), kSuccess;
}
int cublasLtMatmulDescSetAttribute(Matmul m, int attribute, const void* value, size_t bytes) {
  if (attribute != kTransposeA || bytes != sizeof(int32_t)) return kInvalid;
  return std::memcpy(&of(m)->transpose_a, value, bytes), kSuccess;
}
int cublasLtMatmulDescDestroy(Matmul m) { return delete of(m), kSuccess; }
int cublasLtMatrixLayoutCreate(Layout* l, int type, uint64_t rows, uint64_t columns, int64_t leading) {
  return *l = reinterpret_cast<Layout>(new LayoutOf{type, rows, columns, leading}), kSuccess;
}
int cublasLtMatrixLayoutDestroy(Layout l) { return delete of(l), kSuccess; }
int cublasLtMatmulPreferenceCreate(Preference* p) { return *p = reinterpret_cast<Preference>(new PreferenceOf), kSuccess; }
int cublasLtMatmulPreferenceSetAttribute(Preference p, int attribute, const void* value, size_t bytes) {
  if (attribute != kMostWorkspace || bytes != sizeof(size_t)) return kInvalid;
  return std::memcpy(&of(p)->workspace, value, bytes), kSuccess;
}
int cublasLtMatmulPreferenceDestroy(Preference p) { return delete of(p), kSuccess; }
int cublasLtMatmulAlgoGetHeuristic(Handle h, Matmul m, Layout a, Layout b, Layout c, Layout d, Preference p, int asked, Heuristic* to,
                                   int* got) {
  if (h != reinterpret_cast<Handle>(&handle_tag) || !square(a) || !square(b) || !square(c) || !square(d) || asked < 2) return kInvalid;
  if (of(p)->workspace < (size_t(32) << 20)) return kInvalid;
  to[0] = {{{1, uint64_t(of(m)->transpose_a)}}, of(p)->workspace, kSuccess, 1.0f, {}};
  to[1] = {{{2, 99}}, 0, kInvalid, 1.0f, {}};  // not to be taken
  return *got = 2, kSuccess;
}
int cublasLtMatmul(Handle, Matmul m, const void* alpha, const void* a, Layout, const void* b, Layout, const void* beta, const void* c,
                   Layout, void* d, Layout, const Algorithm* algorithm, void* workspace, size_t bytes, void* stream) {
  const bool scales = *static_cast<const float*>(alpha) == 1.0f && *static_cast<const float*>(beta) == 0.0f;
  const bool types = of(m)->compute == kCompute32 && of(m)->scale == kReal32;
  const bool algorithms = algorithm->data[0] == 1 && algorithm->data[1] == uint64_t(of(m)->transpose_a);
  const bool memory = a != b && a != d && c == d && workspace != nullptr && bytes >= (size_t(32) << 20) && stream != nullptr;
  return scales && types && algorithms && memory ? (++matmuls, kSuccess) : kInvalid;
}

}  // extern "C"
