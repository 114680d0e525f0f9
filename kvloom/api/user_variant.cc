#include "kvloom/api/user_variant.h"

#include "kvloom/api/param_binding.h"
#include "kvloom/runtime/user_variant.h"
#include "kvloom/support/check.h"
#include "kvloom/support/files.h"

namespace kvloom {

const UserVariant* variant_from_text(const std::string& text, const std::string& file) { return runtime::user_variant(text, file); }

const UserVariant* variant_from_file(const std::string& path) {
  std::string text, why;
  require(!path.empty(), "variant: file: got an empty name, wanted a file of C++ text (docs/variants.md)");
  if (!read_file(path, text, why)) fail(ErrorCode::io, "variant: {}: {}; name a file of C++ text (docs/variants.md)", path, why);
  return runtime::user_variant(text, path);
}

std::string describe_variant(const UserVariant& v) {
  std::string hooks, params;
  for (const auto& [there, name] : {std::pair{v.logit != nullptr, "logit"},
                                    {v.keep != nullptr, "keep"},
                                    {v.weight != nullptr, "weight"},
                                    {v.finish != nullptr, "finish"},
                                    {v.slope != nullptr, "slope"},
                                    {!(v.range == KeyRange()), "range"}}) {
    if (there) hooks += (hooks.empty() ? "" : ", ") + std::string(name);
  }
  for (int32_t i = 0; i < v.num_params; ++i) params += (i == 0 ? "; parameters " : ", ") + api::declaration_text(v.params[i]);
  return kvloom::format("{} ({}): hooks {}{}", v.name, v.file, hooks, params);
}

AttentionSpec with_user_variant(const AttentionSpec& spec) {
  AttentionSpec s = spec;
  if (s.variant.user == nullptr) return s;
  s.variant.range = both_ranges(s.variant.range, s.variant.user->range);
  if (s.variant.user->reduction == Reduction::sum) s.variant.reduction = Reduction::sum;
  return s;
}

}  // namespace kvloom
