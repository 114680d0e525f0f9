// The CPU's part of a user's variant, as the host's compiler makes it when the variant is first named: the score stage and the mask of one
// target. The tile kernels are the library's own; they call these two. The unit (jit/host_unit.cc) defines KVLOOM_TARGET, and ends with
// KVLOOM_USER_STAGE.
#include "kvloom/cpu/live_keys.h"
#include "kvloom/cpu/score_rows.inl"
#include "kvloom/variants/user.h"

namespace kvloom::cpu::KVLOOM_TARGET {
namespace {

/// live[j] |= row r keeps column j by the hooks, for columns [begin, end).
template <class Variant>
void mark_rows(const Job& job, const RowGroup& group, const KeyColumns& b, const PackedRow& r, int32_t begin, int32_t end, uint8_t* live) {
  const VariantParams& p = job.params->variant;
  const ScoreRow row{
      nullptr,
      Coord{r.request, r.q_index, r.q_pos, group.kv_index0 + b.token, group.kv_pos0 + b.token, r.q_head, r.q_head / job.spec->group_size()},
      b.key_pos, end};
  for (int32_t j = begin; j < end; ++j) live[j] |= uint8_t(Variant::keep(coord_at(row, j), p));
}

template <class Variant>
constexpr MarkStage mark_stage() {
  if constexpr (variants::HasKeep<Variant, VariantParams>) {
    return mark_rows<Variant>;
  } else {
    return nullptr;
  }
}

/// What there is to know of the user's struct U, without where its text is from.
template <class U>
UserVariant describe_user(const char* name) {
  using Hooks = variants::User<U>;
  using P = VariantParams;
  UserVariant v;
  v.name = name;
  v.reduction = Hooks::reduction;
  if constexpr (requires { U::range; }) v.range = U::range;
  if constexpr (requires { U::Params::kvloom_params(); }) {
    static constexpr auto list = U::Params::kvloom_params();
    v.params = list.decl;
    v.num_params = list.count;
  }
  if constexpr (variants::HasLogit<Hooks, P>) v.logit = [](float s, const Coord& c, const P& p) { return Hooks::logit(s, c, p); };
  if constexpr (variants::HasKeep<Hooks, P>) v.keep = [](const Coord& c, const P& p) { return Hooks::keep(c, p); };
  if constexpr (variants::HasWeight<Hooks, P>) v.weight = [](float x, const P& p) { return Hooks::weight(x, p); };
  if constexpr (variants::UserFinish<U>) v.finish = [](float lse, int32_t head, const P& p) { return Hooks::finish(lse, head, p); };
  if constexpr (variants::UserSlope<U>) v.slope = [](const Coord& c, const P& p) { return Hooks::slope(c, p); };
  return v;
}

}  // namespace
}  // namespace kvloom::cpu::KVLOOM_TARGET

/// Entries of the shared object. The arguments: the composed variant.
#define KVLOOM_USER_STAGE(...)                                                                                          \
  extern "C" __attribute__((visibility("default"))) void kvloom_user_variant(kvloom::UserVariant* to) {                 \
    *to = kvloom::cpu::KVLOOM_TARGET::describe_user<kvloom::variants::Chosen>(kvloom::variants::kChosenName);           \
  }                                                                                                                     \
  extern "C" __attribute__((visibility("default"))) void kvloom_user_stage(kvloom::cpu::UserStage* to) {                \
    *to = {kvloom::cpu::KVLOOM_TARGET::score_rows<__VA_ARGS__>, kvloom::cpu::KVLOOM_TARGET::mark_stage<__VA_ARGS__>()}; \
  }
