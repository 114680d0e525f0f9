#include "kvloom/api/plan_state.h"

#include "kvloom/base/mix.h"
#include "kvloom/support/check.h"

#include <cstring>
#include <new>
#include <utility>

namespace kvloom {
namespace api {

void AlignedFree::operator()(void* p) const { ::operator delete(p, std::align_val_t(64)); }

std::unique_ptr<char, AlignedFree> aligned_bytes(int64_t bytes, const char* what) {
  void* const p = ::operator new(size_t(bytes > 0 ? bytes : 1), std::align_val_t(64), std::nothrow);
  if (p == nullptr) fail(ErrorCode::out_of_memory, "Engine: {}: got no memory, wanted {} bytes; lower the capacity", what, bytes);
  return std::unique_ptr<char, AlignedFree>(static_cast<char*>(p));
}

void PlanState::add_blocks(int planner, int64_t bytes) {
  for (int turn = 0; turn < (cuda ? 2 : 1); ++turn) {
    Block& block = blocks_[planner][turn];
    block.data = aligned_bytes(bytes, "plan");
    block.bytes = bytes;
    std::memset(block.data.get(), 0, size_t(bytes));
  }
}

char* PlanState::open_block(int planner) {
  Block* const turns = blocks_[planner];
  next_ = cuda && now_ == turns ? turns + 1 : turns;
  if (next_->open) {
    std::memset(next_->data.get(), 0, size_t(next_->bytes));
    next_->held = PlanHeader{};
  }
  next_->open = true;
  return next_->data.get();
}

void PlanState::leave_block() { next_->open = false; }

void PlanState::close_block() {
  const PlanView v = view_plan(next_->data.get());
  PlanHeader& before = next_->held;
  const auto clear = [](auto span, int32_t count_before) {
    if (count_before <= span.size) return;
    std::memset(const_cast<void*>(static_cast<const void*>(span.data + span.size)), 0, size_t(count_before - span.size) * sizeof span[0]);
  };
  clear(v.groups, before.num_groups);
  clear(v.row_entries, before.num_row_entries);
  clear(v.items, before.num_items);
  clear(v.units, before.num_units);
  clear(v.entries, before.num_entries);
  clear(v.touches, before.num_touches);
  before = *v.header;
  next_->open = false;
}

void PlanState::take_block(const runtime::AttendModule::Entry* entry) {
  now_ = next_;
  std::swap(static_cast<PlannedStep&>(*this), next_step);
  if (cuda) cuda->take(view(), *entry, {mask_columns.data(), int64_t(mask_columns.size())});
}

PlanView PlanState::view() const {
  require(planner < 0 || fetched, "plan: got one that the device has made, wanted its bytes on the host; call check(plan, stream) (kvloom_plan_check) first");
  return view_plan(now_->data.get());
}

void PlanState::take_device_step() { std::swap(static_cast<PlannedStep&>(*this), next_step); }

void PlanState::take_fetched() {
  now_ = next_;
  fetched = true;
}

std::unique_ptr<PlanState> PlanPool::take() {
  std::lock_guard lock(mutex_);
  if (resting_.empty()) return nullptr;
  std::unique_ptr<PlanState> state = std::move(resting_.back());
  resting_.pop_back();
  return state;
}

void PlanPool::put(std::unique_ptr<PlanState> state) {
  std::lock_guard lock(mutex_);
  if (!closed_) resting_.push_back(std::move(state));
}

void PlanPool::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  resting_.clear();
}

}  // namespace api

Plan::Plan(std::unique_ptr<api::PlanState> state) : state_(std::move(state)) {}
Plan::Plan(Plan&&) noexcept = default;

Plan& Plan::operator=(Plan&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}

Plan::~Plan() {
  if (!state_) return;
  const std::shared_ptr<api::PlanPool> pool = std::move(state_->pool);
  pool->put(std::move(state_));
}

const api::PlanState& Plan::state() const {
  require(state_ != nullptr, "Plan: got one that was moved from, wanted a live plan");
  return *state_;
}

PlanView Plan::view() const { return state().view(); }
Span<const char> Plan::bytes() const { return {reinterpret_cast<const char*>(view().header), view().header->total_bytes}; }

uint64_t Plan::graph_key() const {
  const api::PlanState& s = state();
  uint64_t key = s.planner < 0 ? view().header->graph_key : s.declared_key;
  for (const char* c = s.entry; c != nullptr && *c != 0; ++c) key = mix64(key ^ uint64_t(static_cast<unsigned char>(*c)));
  return key;
}

const std::string& Plan::kernel_key() const { return state().kernel_key; }
int64_t Plan::total_tokens() const { return state().total_tokens; }

}  // namespace kvloom
