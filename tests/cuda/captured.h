// A graph of one run, replayed with other steps.
#pragma once

#include "tests/cuda/engine_fixture.h"

#include <memory>

namespace kvloom::test {

/// A captured run, and its plan, tensors and stream. Steps are put at the addresses of `largest`.
class Captured {
 public:
  Captured(Engine& engine, Step& largest) : Captured(engine, largest, largest) {}
  /// The step that is captured has tensors of its own size. `stream`: for several graphs of one engine, which waits for the stream of its last run.
  Captured(Engine& engine, Step& largest, Step& first, std::shared_ptr<GpuStream> stream = std::make_shared<GpuStream>(0))
      : engine_(engine), stream_(std::move(stream)), tensors_(largest), pool_(largest.spec.storage == Storage::paged ? largest.tensors.k.shape[0] : -1), plan_(engine.plan(first.batch)) {
    fit(first);
    capture();
  }

  /// Replays the graph on `s`; captures again first where the plan is of another kind.
  void replay(Step& s, const std::string& what) {
    engine_.replan(plan_, s.batch);
    if (plan_.graph_key() != key_) {
      fit(s);
      capture();
      ++captures;
    }
    tensors_.refill(s);
    engine_.upload(plan_, stream_->handle());
    stream_->launch();
    stream_->synchronize();
    const std::vector<char> replayed = bits_of(tensors_, s);
    expect_gpu_right(s, what);
    tensors_.poison();
    fit(s);
    engine_.run(plan_, tensors_.tensors, stream_->handle());
    stream_->synchronize();
    EXPECT_EQ(bits_of(tensors_, s), replayed) << what << ": not the bits of the same plan without a graph";
  }
  int captures = 0;

 private:
  /// The tensors' shapes are those of `s`; their addresses stay.
  void fit(const Step& s) {
    RunTensors& t = tensors_.tensors;
    t.q.shape[0] = t.o.shape[0] = t.lse.shape[0] = s.qo_indptr.back();
    t.k.shape[0] = s.tensors.k.shape[0];
    t.v.shape[0] = s.tensors.v.shape[0];
    if (t.pages.given()) t.pages.size = int64_t(s.pages.size());
  }
  /// With the whole pool of pages, as callers have to.
  void capture() {
    engine_.upload(plan_, stream_->handle());
    if (pool_ >= 0) tensors_.tensors.k.shape[0] = tensors_.tensors.v.shape[0] = pool_;
    stream_->begin_capture();
    engine_.run(plan_, tensors_.tensors, stream_->handle());
    stream_->end_capture();
    key_ = plan_.graph_key();
  }

  Engine& engine_;
  std::shared_ptr<GpuStream> stream_;
  GpuStep tensors_;
  int64_t pool_;  // pages; -1: there are none
  Plan plan_;
  uint64_t key_ = 0;
};

}  // namespace kvloom::test
