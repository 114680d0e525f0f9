#include "kvloom/jit/unit.h"

#include "kvloom/support/format.h"

#include <algorithm>
#include <vector>

namespace kvloom::jit {
namespace {

constexpr const char kDefineTimeline[] = "#define KVLOOM_TIMELINE\n";

/// A part of a variant: its type within kvloom::variants, and its header.
struct Part {
  std::string type;
  std::string header;
};

/// In the order of composition: bias before cap, mask last. Causal order, windows and prefixes are data, and so is a sink: the
/// kernel's finish adds it where the parameters have one.
std::vector<Part> parts_of(const VariantSpec& v) {
  std::vector<Part> parts;
  if (v.rope.mode == RopeMode::interleaved) parts.push_back({"Rope<kvloom::RopeMode::interleaved>", "rope.h"});
  if (v.rope.mode == RopeMode::half_split) parts.push_back({"Rope<kvloom::RopeMode::half_split>", "rope.h"});
  if (v.alibi) parts.push_back({"Alibi", "alibi.h"});
  if (v.soft_cap > 0.0f) parts.push_back({"SoftCap", "soft_cap.h"});
  if (v.custom_mask) parts.push_back({"CustomMask", "custom_mask.h"});
  const bool user_sums = v.user != nullptr && v.user->reduction == Reduction::sum;
  if (v.reduction == Reduction::sum && !user_sums) parts.push_back({"Sigmoid", "sigmoid.h"});
  if (v.user != nullptr) parts.push_back({"User<kvloom::variants::Chosen>", "user.h"});
  if (parts.empty()) parts.push_back({"Plain", "plain.h"});
  return parts;
}

}  // namespace

std::string variant_type(const VariantSpec& variant) {
  const std::vector<Part> parts = parts_of(variant);
  std::string list;
  for (const Part& p : parts) list += (list.empty() ? "" : ", ") + ("kvloom::variants::" + p.type);
  return parts.size() == 1 ? list : "kvloom::variants::Compose<" + list + ">";
}

std::string variant_headers(const VariantSpec& variant) {
  const std::vector<Part> parts = parts_of(variant);
  std::string text;
  for (const Part& p : parts) text += kvloom::format("#include \"kvloom/variants/{}\"\n", p.header);
  if (parts.size() > 1) text += "#include \"kvloom/variants/compose.h\"\n";
  return text;
}

std::string user_text(const UserVariant& user) {
  std::string file;
  for (const char* c = user.file; *c != '\0'; ++c) file += *c == '"' || *c == '\\' || *c == '\n' || *c == '\xff' ? '_' : *c;  // NVRTC takes 0xff for the end
  return kvloom::format("#line 1 \"{}\"\n{}\n", file, user.text);
}

std::vector<Program> Unit::programs() const {
  std::vector<Program> list;
  for (const Entry& e : entries) list.push_back({key + ":" + e.name, text + e.line, {e.name}, {e.name + "_facts"}, variant_file});
  return list;
}

std::string Unit::whole() const {
  std::string all = text;
  for (const Entry& e : entries) all += e.line;
  return all;
}

Unit attend_unit(const std::string& key, const AttentionSpec& spec, const std::vector<UnitConfig>& configs, const std::vector<UnitEntry>& entries) {
  std::string text = kvloom::format("// {}\n", key), constants;
  for (size_t i = 0; i < configs.size(); ++i) {
    const UnitConfig& c = configs[i];
    const bool known = std::any_of(configs.begin(), configs.begin() + std::ptrdiff_t(i), [&](const UnitConfig& before) { return before.family == c.family; });
    if (!known) text += kvloom::format("#include \"kvloom/device/{}/unit.cuh\"\n", c.family);
    constants += kvloom::format("[[maybe_unused]] constexpr kvloom::{}::AttendConfig {}{{{}}};\n", c.family, c.name, c.text);
  }
  text += variant_headers(spec.variant);
  if (spec.variant.user != nullptr) text += user_text(*spec.variant.user) + kvloom::format("#line 1 \"the end of {}\"\n", key);
  text += kvloom::format("\nnamespace {{\nusing Variant = {};\n{}}}  // namespace\n\n", variant_type(spec.variant), constants);
  Unit unit{key, text, {}, spec.variant.user != nullptr ? spec.variant.user->file : ""};
  for (const UnitEntry& e : entries) unit.entries.push_back({e.name, kvloom::format("{}({}, {}, Variant)\n", e.macro, e.name, e.configs)});
  return unit;
}

Unit with_timeline(Unit unit) {
  unit.text.insert(unit.text.find('\n') + 1, kDefineTimeline);
  return unit;
}

bool has_timeline(const Program& program) { return program.text.find(kDefineTimeline) == program.text.find('\n') + 1; }

Program ops_program() {
  return {"ops.any", "// ops.any\n#include \"kvloom/device/any/append_kv.cuh\"\n#include \"kvloom/device/any/merge_states.cuh\"\n",
          {"append_kv", "apply_rope", "merge_states"}};
}

Program plan_program() {
  return {"plan.stream", "// plan.stream\n#include \"kvloom/device/plan/plan_stream.cuh\"\n", {"plan_stream"}};
}

}  // namespace kvloom::jit
