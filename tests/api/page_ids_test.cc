// Page ids of more requests, and of longer lists, than are looked at in one go: a wrong one is named wherever it stands.
#include "kvloom/api/engine.h"
#include "kvloom/support/check.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

namespace kvloom {
namespace {

constexpr int32_t kRequests = 300, kDim = 16;

struct ManyLists {
  std::vector<int32_t> kv_len, qo_indptr{0}, list_indptr{0}, pages;
  AttentionSpec spec;
  Batch batch;

  ManyLists() {
    spec.num_qo_heads = spec.num_kv_heads = 1;
    spec.head_dim_qk = spec.head_dim_vo = kDim;
    spec.q_dtype = spec.kv_dtype = spec.o_dtype = DType::f32;
    spec.page_size = 1;
    for (int32_t r = 0; r < kRequests; ++r) {
      kv_len.push_back(r % 50 == 7 ? 3000 : 1 + r % 40);
      qo_indptr.push_back(r + 1);
      list_indptr.push_back(list_indptr.back() + kv_len.back());
    }
    pages.resize(size_t(list_indptr.back()));
    for (size_t i = 0; i < pages.size(); ++i) pages[i] = int32_t(i * 7 % 1000);
    batch.num_requests = kRequests;
    batch.qo_indptr = IndexView(qo_indptr.data(), kRequests + 1);
    batch.kv_len = IndexView(kv_len.data(), kRequests);
    batch.list_indptr = IndexView(list_indptr.data(), kRequests + 1);
    batch.pages = IndexView(pages.data(), int64_t(pages.size()));
  }
  int32_t request_of(int64_t entry) const {
    int32_t r = 0;
    while (list_indptr[size_t(r) + 1] <= entry) ++r;
    return r;
  }
};

template <class F>
std::string refusal_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(PageIds, AWrongOneIsNamedWhereverItStands) {
  ManyLists m;
  Engine engine(m.spec, {kRequests, kRequests, 0, 0, 0}, {});
  std::vector<float> q(kRequests * kDim), cache(1000 * kDim), o(q.size());
  RunTensors tensors;
  tensors.q = Tensor::dense(q.data(), DType::f32, {kRequests, 1, kDim});
  tensors.k = tensors.v = Tensor::dense(cache.data(), DType::f32, {1000, 1, 1, kDim});
  tensors.o = Tensor::dense(o.data(), DType::f32, {kRequests, 1, kDim});
  engine.run(engine.plan(m.batch), tensors);
  const int64_t last = m.batch.pages.size - 1;
  for (const int64_t at : {int64_t(0), int64_t(7), int64_t(1500), last / 2, last - 2000, last - 1, last}) {
    ManyLists bad;
    bad.pages[size_t(at)] = 1000;
    const std::string place = "pages[" + std::to_string(at) + "]";
    const Plan plan = engine.plan(bad.batch);
    const std::string run = refusal_of([&] { engine.run(plan, tensors); });
    EXPECT_NE(run.find(place + " (request " + std::to_string(bad.request_of(at)) + "): page id: got 1000"), std::string::npos) << run;
    bad.pages[size_t(at)] = -3;
    const std::string plan_text = refusal_of([&] { engine.plan(bad.batch); });
    EXPECT_NE(plan_text.find(place + ": page id: got -3"), std::string::npos) << plan_text;
  }
}

}  // namespace
}  // namespace kvloom
