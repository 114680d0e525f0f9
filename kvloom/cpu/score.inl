// The precompiled score stages of one target: every combination of bias, cap and mask with either reduction.
#include "kvloom/cpu/score_rows.inl"
#include "kvloom/variants/alibi.h"
#include "kvloom/variants/custom_mask.h"
#include "kvloom/variants/plain.h"
#include "kvloom/variants/sigmoid.h"
#include "kvloom/variants/soft_cap.h"

namespace kvloom::cpu::KVLOOM_TARGET {
namespace {

template <class Reduction>
ScoreStage stage_of(const VariantSpec& v) {
  using variants::Alibi, variants::Compose, variants::CustomMask, variants::SoftCap;
  static constexpr ScoreStage stages[2][2][2] = {
      {{score_rows<Compose<Reduction>>, score_rows<Compose<CustomMask, Reduction>>},
       {score_rows<Compose<SoftCap, Reduction>>, score_rows<Compose<SoftCap, CustomMask, Reduction>>}},
      {{score_rows<Compose<Alibi, Reduction>>, score_rows<Compose<Alibi, CustomMask, Reduction>>},
       {score_rows<Compose<Alibi, SoftCap, Reduction>>, score_rows<Compose<Alibi, SoftCap, CustomMask, Reduction>>}},
  };
  return stages[v.alibi][v.soft_cap > 0.0f][v.custom_mask];
}

}  // namespace

ScoreStage score_stage(const VariantSpec& v) {
  return v.reduction == Reduction::sum ? stage_of<variants::Sigmoid>(v) : stage_of<variants::Plain>(v);
}

}  // namespace kvloom::cpu::KVLOOM_TARGET
