// Marks of time (contract/timeline.h) by the thread that does a CTA; nothing where nobody asked. Private to the room.
#pragma once

#include "kvloom/contract/plan_format.h"
#include "kvloom/contract/timeline.h"

#include <chrono>

namespace kvloom::cpu {

class Marks {
 public:
  Marks(CtaTimes* timeline, const PlanView& plan, int64_t cta, int thread) {
    if (timeline == nullptr) return;
    cta_ = timeline + cta;
    number_ = int32_t(cta);
    item_ = reinterpret_cast<ItemTimes*>(timeline + plan.header->num_ctas) + plan.cta_indptr[cta];
    cta_->place = thread;
    cta_->begin = cta_->ready = item_begin_ = now();
  }
  ~Marks() {
    if (cta_ != nullptr) cta_->end = now();
  }
  Marks(const Marks&) = delete;
  Marks& operator=(const Marks&) = delete;

  void attended() {
    if (cta_ != nullptr) item_->attended = now();
  }
  void stored() {
    if (cta_ != nullptr) item_->stored = now();
  }
  void merged() {
    if (cta_ != nullptr) ++item_->merged;
  }
  /// Of an item: the next one begins.
  void done() {
    if (cta_ == nullptr) return;
    item_->fed = item_begin_;  // whatever it reads is there
    item_->cta = number_;
    item_begin_ = item_->end = now();
    ++item_;
  }

 private:
  static uint64_t now() { return uint64_t(std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count()); }
  CtaTimes* cta_ = nullptr;
  ItemTimes* item_ = nullptr;
  uint64_t item_begin_ = 0;
  int32_t number_ = 0;
};

}  // namespace kvloom::cpu
