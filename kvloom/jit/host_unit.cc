#include "kvloom/jit/host_unit.h"

#include "kvloom/jit/code_text.h"
#include "kvloom/jit/sources.h"
#include "kvloom/support/format.h"

#include <set>
#include <string_view>

namespace kvloom::jit {
namespace {

/// Appends a header and, before its lines, what those include; `seen`: what is there already.
void append_header(std::string_view name, std::set<std::string_view>& seen, std::string& to) {
  const SourceText* const source = seen.insert(name).second ? find_source(host_sources(), name) : nullptr;
  if (source == nullptr) return;
  to += kvloom::format("#line 1 \"{}\"\n", source->name);
  for_each_line(source->text, [&](std::string_view line, size_t number) {
    const std::string_view inner = included(line);
    if (!inner.empty()) {
      append_header(inner, seen, to);
      to += kvloom::format("#line {} \"{}\"\n", number + 1, source->name);
    } else if (line != "#pragma once") {
      to.append(line).append("\n");
    } else {
      to += "\n";
    }
  });
}

bool is_embedded(std::string_view name) { return find_source(host_sources(), name) != nullptr; }

}  // namespace

std::string with_headers(const std::string& text) {
  std::string out;
  std::set<std::string_view> seen;
  const std::string code = code_of(text);
  for_each_line(code, [&](std::string_view line, size_t) {
    const std::string_view name = included(line);
    if (!is_embedded(name)) {
      out.append(text, size_t(line.data() - code.data()), line.size()).append("\n");
    } else if (seen.contains(name)) {
      out += "\n";  // a line of the user's own text: those below it keep their numbers
    } else {
      append_header(name, seen, out);
    }
  });
  return out;
}

std::vector<std::string> host_options(const HostTarget& target) {
  // No contraction, as everywhere in the library: a sum of products is the same roundings in every build.
  std::vector<std::string> options{
      "-std=c++20",          "-O3", "-fPIC", "-shared", "-Wl,-z,defs", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden",
      "-Wno-unused-function"};
  options.insert(options.end(), target.options.begin(), target.options.end());
  return options;
}

Program host_unit(const VariantSpec& spec, const HostTarget& target) {
  const UserVariant& user = *spec.user;
  std::string key = std::string("variant.") + user.name;
  for (const auto& [there, word] : {std::pair{spec.alibi, "alibi"},
                                    {spec.soft_cap > 0.0f, "softcap"},
                                    {spec.custom_mask, "mask"},
                                    {spec.reduction == Reduction::sum && user.reduction != Reduction::sum, "sigmoid"}}) {
    if (there) key += std::string(".") + word;
  }
  VariantSpec scored = spec;
  scored.rope.mode = RopeMode::none;  // queries and keys are turned before they are multiplied, by the library
  std::string text = kvloom::format("// {}, for CPU target {}\n#define KVLOOM_TARGET {}\n#include \"kvloom/cpu/user_stage.inl\"\n", key,
                                    target.name, target.name);
  text += variant_headers(scored);
  for_each_line(code_of(user.text), [&](std::string_view line, size_t) {
    if (is_embedded(included(line))) text += kvloom::format("#include \"{}\"\n", included(line));
  });
  text += user_text(user);
  text += kvloom::format(
      "#line 1 \"the end of {}\"\n"
      "static_assert(kvloom::variants::is_chosen(0), \"the line KVLOOM_VARIANT(NAME) does not count: it stands in an #if that is not taken\");\n"
      "KVLOOM_USER_STAGE({})\n",
      key, variant_type(scored));
  return {key, with_headers(text)};
}

}  // namespace kvloom::jit
