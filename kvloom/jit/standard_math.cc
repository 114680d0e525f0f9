#include "kvloom/jit/sources.h"

namespace kvloom::jit {
namespace {

// NVRTC has no standard library, but has the functions of <cmath> built in, for float and double, in the global namespace.
constexpr const char* kMath = R"kvloom_text(#pragma once
#define INFINITY __builtin_bit_cast(float, 0x7f800000)
#define NAN __builtin_bit_cast(float, 0x7fc00000)
namespace std {
using ::abs, ::fabs, ::fmod, ::remainder, ::fma, ::fmax, ::fmin, ::fdim;
using ::exp, ::exp2, ::expm1, ::log, ::log2, ::log10, ::log1p, ::pow, ::sqrt, ::cbrt, ::hypot;
using ::sin, ::cos, ::tan, ::asin, ::acos, ::atan, ::atan2, ::sinh, ::cosh, ::tanh, ::asinh, ::acosh, ::atanh;
using ::erf, ::erfc, ::tgamma, ::lgamma, ::floor, ::ceil, ::trunc, ::round, ::rint, ::nearbyint, ::lround, ::llround;
using ::copysign, ::frexp, ::ldexp, ::logb, ::ilogb, ::scalbn, ::nextafter, ::isnan, ::isinf, ::isfinite, ::signbit;
using ::fabsf, ::fmodf, ::fmaf, ::fmaxf, ::fminf, ::expf, ::exp2f, ::expm1f, ::logf, ::log2f, ::log10f, ::log1pf, ::powf, ::sqrtf;
using ::sinf, ::cosf, ::tanf, ::sinhf, ::coshf, ::tanhf, ::erff, ::erfcf, ::floorf, ::ceilf, ::truncf, ::roundf, ::rintf, ::copysignf;
}
)kvloom_text";

constexpr SourceText kSources[] = {{"cmath", kMath}, {"math.h", kMath}};

}  // namespace

Span<const SourceText> standard_sources() { return {kSources, int64_t(std::size(kSources))}; }

}  // namespace kvloom::jit
