#include "kvloom/runtime/user_variant.h"

#include "kvloom/jit/host_variant.h"
#include "kvloom/support/check.h"
#include "kvloom/support/hash.h"

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>

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

}  // namespace

const UserVariant* user_variant(const std::string& text, const std::string& file) {
  static std::mutex mutex;
  static auto* const all = new std::map<std::string, std::unique_ptr<Interned>>;  // by file and text
  const std::string shown = file.empty() ? "variant" : file, fault = jit::text_fault(text);
  require(fault.empty(), "variant{}{}: {}", file.empty() ? "" : " ", file, fault);
  std::lock_guard lock(mutex);
  std::unique_ptr<Interned>& at = (*all)[shown + '\n' + text];
  if (at) return &at->variant;
  auto fresh = std::make_unique<Interned>();
  *fresh = {jit::name_in(text), shown, text, {}};
  fresh->variant.name = fresh->name.c_str();
  fresh->variant.file = fresh->file.c_str();
  fresh->variant.text = fresh->text.c_str();
  VariantSpec alone;
  alone.user = &fresh->variant;
  UserVariant facts = compiled(alone, cpu::best_target()).facts;
  facts.name = fresh->name.c_str();
  facts.file = fresh->file.c_str();
  facts.text = fresh->text.c_str();
  facts.digest = std::strtoull(sha256_hex(text).substr(0, 16).c_str(), nullptr, 16);
  fresh->variant = facts;
  at = std::move(fresh);
  return &at->variant;
}

cpu::UserStage user_stage(const VariantSpec& variant, cpu::Target target) {
  cpu::UserStage stage;
  compiled(variant, target).stage(&stage);
  return stage;
}

}  // namespace kvloom::runtime
