// A block of one thread, which runs the phases of the device's planner (device/plan) on the host.
#pragma once

#include "kvloom/device/plan/stream.h"

#include <algorithm>
#include <memory>
#include <vector>

namespace kvloom::test {

struct SerialBlock {
  template <class F>
  void each(int32_t n, F&& f) {
    for (int32_t i = 0; i < n; ++i) f(i);
  }
  template <class F>
  void each_out(int32_t n, F&& f) {
    each(n, f);
  }
  template <class F>
  void once(F&& f) {
    f();
  }
  bool writes(int32_t) { return true; }
  template <class State, class Read, class Write>
  void two_steps(int32_t n, Read&& read, Write&& write) {
    std::vector<State> states(static_cast<size_t>(n));
    for (int32_t i = 0; i < n; ++i) read(i, states[size_t(i)]);
    for (int32_t i = 0; i < n; ++i) write(i, states[size_t(i)]);
  }
  template <class State, class F>
  int32_t settle(int32_t n, F&& step) {
    std::vector<State> states(static_cast<size_t>(n));
    int32_t round = 0;
    for (bool moved = true; moved; ++round) {
      moved = round == 0;
      for (int32_t i = 0; i < n; ++i) moved |= step(i, states[size_t(i)], round);
    }
    return round;
  }
  template <class State, class T, int kCount, class Load, class Store>
  auto scan_most(int32_t n, T (&)[kCount], Load&& load, Store&& store) {
    return scan<State>(n, load, store);
  }
  template <class State, int kCount, int kTotals, class Load, class Store>
  auto scan_most(int32_t n, uint32_t (&)[kCount], uint32_t (&)[kTotals], Load&& load, Store&& store) {
    return scan<State>(n, load, store);
  }
  template <class State, class Load, class Store>
  auto scan(int32_t n, Load&& load, Store&& store) {
    State* const no_state = nullptr;
    decltype(load(0, *no_state)) sum{};
    for (int32_t i = 0; i < n; ++i) {
      State state;
      const auto own = load(i, state);
      store(i, state, sum);
      sum = sum + own;
    }
    return sum;
  }
  template <class T, int kCount>
  void most(T (&)[kCount]) {}
  bool any(bool mine) { return mine; }
  void sort(uint64_t* keys, int32_t n) { std::sort(keys, keys + n); }
  template <class T>
  void put(T* to, const T& x) {
    *to = x;
  }
};

/// Plans a step as the device would.
inline void plan_serially(plan::DeviceArgs args) {
  static thread_local const auto memory = std::make_unique<device_plan::Memory>();
  static thread_local std::vector<char> tables;
  tables.resize(std::max(tables.size(), size_t(plan::plan_table_bytes(args))));
  SerialBlock block;
  device_plan::plan_step(block, args, *memory, tables.data());
}

}  // namespace kvloom::test
