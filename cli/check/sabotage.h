// Deliberate faults. A check that can't see these proves nothing: tests/check runs every one of them and wants it found.
#pragma once

#include "cli/check/materialise.h"

#include <string>
#include <vector>

namespace kvloom::check {

enum class Sabotage : int32_t {
  none = 0,
  drop_item,          // a CTA never does its last work item
  empty_item,         // a work item has lost its keys: its partial is the empty state
  short_item,         // a work item ends one key early
  swap_merge,         // two units read each other's partial
  window_off_by_one,  // the engine keeps one key more than the spec says
  causal_off_by_one,  // every query stands one position too early
  wrong_page,         // one page id is another page's
  dropped_scale,      // fp8 K and V scales are 1
  dropped_soft_cap,
  lse_base_2,  // the LSE comes out in base 2
};

/// The word of the command line, as `drop-item`.
const char* word_of(Sabotage s);
std::vector<std::string> sabotage_words();
/// Throws Error(invalid_argument) that lists the words.
Sabotage parse_sabotage(const std::string& word);
std::vector<Sabotage> all_sabotages();

/// Spoils a plan between plan() and run(). False if the plan has nothing of the kind to spoil.
bool spoil_plan(Sabotage s, const Plan& plan);

/// What the engine is made with instead of `c`. False if it makes no difference to this kind of case.
bool spoil_case(Sabotage s, Case& c);

/// The inputs of a run, spoiled; `storage` holds what the spoiled tensors point at. False if there is nothing of the kind.
struct SpoiledInputs {
  std::vector<int64_t> pages;
  std::vector<int32_t> q_pos;
};
bool spoil_inputs(Sabotage s, const CaseData& data, SpoiledInputs& storage, Batch& batch, RunTensors& tensors);

/// What comes out of a run, spoiled.
bool spoil_output(Sabotage s, std::vector<float>& lse);

}  // namespace kvloom::check
