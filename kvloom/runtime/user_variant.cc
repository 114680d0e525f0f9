#include "kvloom/runtime/user_variant.h"

#include "kvloom/jit/host_variant.h"
#include "kvloom/jit/text_fault.h"
#include "kvloom/support/check.h"
#include "kvloom/support/hash.h"
#include "kvloom/support/made_once.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>

namespace kvloom::runtime {
namespace {

/// A text that has been compiled, and what UserVariant points at.
struct Interned {
  std::string name, file, text;
  UserVariant variant;
};

/// What the compiler is told of a target: the flags of kvloom/CMakeLists.txt.
jit::HostTarget host_target(cpu::Target target) {
  switch (target) {
    case cpu::Target::avx2:
      return {"avx2", {"-mavx2", "-mfma", "-mf16c"}};
    case cpu::Target::avx512:
      return {"avx512", {"-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma", "-mf16c", "-mprefer-vector-width=512"}};
    case cpu::Target::portable:
      break;
  }
  return {"portable", {}};
}

const jit::HostVariant& compiled(const VariantSpec& variant, cpu::Target target) {
  const jit::HostTarget host = host_target(target);
  return jit::host_variant(jit::host_unit(variant, host), host);
}

/// `kvloom check` draws a parameter's values from its range: it has some, and the type holds them. Numbers of i64 are
/// bound as doubles, and exact there.
void check_range(const ParamDecl& d, const std::string& file) {
  constexpr double kExact = 9007199254740992.0;  // 2^53
  struct Bounds {
    const char* type;
    double low, high;
    const char* text;
  };
  constexpr double kFloat = std::numeric_limits<float>::max();
  const Bounds all[] = {{"f32", -kFloat, kFloat, "-3.40282e+38 to 3.40282e+38"},
                        {"i32", -2147483648.0, 2147483647.0, "-2147483648 to 2147483647"},
                        {"i64", -kExact, kExact, "-2^53 to 2^53"},
                        {"u8", 0.0, 255.0, "0 to 255"}};
  const Bounds& b = all[int(d.type)];
  const bool whole = d.type != ParamType::f32;
  require(d.low <= d.high && d.low >= b.low && d.high <= b.high && (!whole || std::ceil(d.low) <= d.high),
          "variant {}: KVLOOM_PARAM({}, low, high): got {} to {}, wanted low <= high within {} ({}){}; kvloom check draws values from there", file, d.name,
          d.low, d.high, b.text, b.type, whole ? ", and a whole number between them" : "");
}

/// Compiles `text`.
std::unique_ptr<Interned> interned(const std::string& text, const std::string& file) {
  auto fresh = std::make_unique<Interned>(Interned{jit::name_in(text), file, text, {}});
  UserVariant& v = fresh->variant;
  const auto point = [&] { v.name = fresh->name.c_str(), v.file = fresh->file.c_str(), v.text = fresh->text.c_str(); };
  point();
  VariantSpec alone;
  alone.user = &v;
  v = compiled(alone, cpu::best_target()).facts;
  point();
  for (int32_t i = 0; i < v.num_params; ++i) check_range(v.params[i], file);
  v.digest = std::strtoull(sha256_hex(text).substr(0, 16).c_str(), nullptr, 16);
  return fresh;
}

}  // namespace

const UserVariant* user_variant(const std::string& given, const std::string& file) {
  static auto* const all = new MadeOnce<Interned>;  // by file and text
  const std::string text(jit::without_mark(given)), shown = file.empty() ? "variant" : file, fault = jit::text_fault(text);
  require(fault.empty(), "variant{}{}: {}", file.empty() ? "" : " ", file, fault);
  return &all->get(shown + '\n' + text, [&] { return interned(text, shown); }).variant;
}

cpu::UserStage user_stage(const VariantSpec& variant, cpu::Target target) {
  cpu::UserStage stage;
  compiled(variant, target).stage(&stage);
  return stage;
}

}  // namespace kvloom::runtime
