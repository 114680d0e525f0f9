// GQA, DIM and STRIDE: group sizes, head dims, page sizes, views.
#include "tests/bugs/bug_case.h"

#include <cmath>

namespace kvloom::bugs {
namespace {

TEST(Gqa, B50_AnyGroupSizeOnBothPaths) { expect_right("B50"); }

TEST(Gqa, B51_HeadsOfATokenMayStraddleTiles) {
  expect_right("B51");
  // The entry's own lengths, one schedule: two tokens over 235 keys beside one over 13353.
  Case c = bug_case("B51.odd_group");
  c.kv_len = {235, 13353};
  CaseData data(c);
  check::CaseOptions options;
  options.schedules = {{Policy::automatic, 64, LevelMode::automatic}};
  expect_right(data, options);
}

TEST(Gqa, B53_PackedRowsKeepTheirOwnTokensAndHeads) { expect_right("B53"); }

TEST(Dim, B54_DimsThatNeedPadding) { expect_right("B54"); }

TEST(Dim, B56_EveryPageSizeAtHeadDim256) { expect_right("B56"); }

TEST(Dim, B57_OddDimsWorkAndImpossibleOnesAreNamed) {
  expect_right("B57");
  for (const int32_t dim : {0, -64}) {
    AttentionSpec spec = bug_case("B57.dim_56").spec;
    spec.head_dim_qk = spec.head_dim_vo = dim;
    const std::string message = error_of([&] { Engine engine(spec, {1, 1, 1, 0, 0}); });
    EXPECT_NE(message.find("head_dim"), std::string::npos) << message;
    EXPECT_NE(message.find(std::to_string(dim)), std::string::npos) << message;
  }
}

TEST(Dim, B58_TilesOfLargeDimsFit) { expect_right("B58"); }

TEST(Stride, B60_KAndVAsViewsOfWiderRows) {
  expect_right("B60");
  // Whose last dimension is not contiguous is refused, never misread.
  CaseData data(bug_case("B60.blocks_apart"));
  Engine engine(data.what().spec, data.capacity());
  const Plan plan = engine.plan(data.batch());
  for (Tensor RunTensors::*tensor : {&RunTensors::q, &RunTensors::k, &RunTensors::v, &RunTensors::o}) {
    RunTensors tensors = data.tensors();
    Tensor& t = tensors.*tensor;
    t.stride[t.ndim - 1] = 2;
    t.shape[0] = (t.shape[0] + 1) / 2;
    EXPECT_NE(error_of([&] { engine.run(plan, tensors); }), "");
  }
}

TEST(Stride, B61_QueriesOfAFusedProjectionAndOutputsOfABiggerTensor) { expect_right("B61"); }

TEST(Stride, B104_TheSinkVectorEndsWhereItEnds) { expect_right("B104"); }

}  // namespace
}  // namespace kvloom::bugs
