// What other engines took, joined into our rows: only figures of the same rows on the same GPU.
#include "cli/bench/peers.h"

#include "kvloom/support/error.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

#include <fstream>

namespace kvloom::cli {
namespace {

using test::error_of;
using test::TemporaryFolder;

GpuShape shape(const char* name) {
  GpuShape s;
  s.name = name;
  s.spec.num_qo_heads = s.spec.num_kv_heads = 1;
  s.spec.head_dim_qk = s.spec.head_dim_vo = 64;
  s.q_len = s.kv_len = {10};
  return s;  // 4 x 64 x 100 FLOP
}

class Peers : public testing::Test {
 protected:
  PeerResults read(const std::string& text) {
    std::ofstream(path_) << text;
    return PeerResults(path_, "NVIDIA H200");
  }
  std::string refusal(const std::string& text) {
    return error_of([&] { read(text); });
  }
  TemporaryFolder folder_;
  std::string path_ = folder_ / "peers.json";
};

TEST_F(Peers, FiguresAndRefusalsOfARow) {
  const PeerResults r =
      read(R"({"gpu": "NVIDIA H200", "machine": {"torch": "2.11"}, "not_installed": {"flashinfer": "not installed"}, "rows": [
      {"shape": "a", "peer": "cudnn", "median_us": 5.5, "tflops": 682, "flop": 25600, "sustained": {"tflops": 577}},
      {"shape": "b", "peer": "cudnn", "median_us": 7.5},
      {"shape": "a", "peer": "flex", "why": "does not do MLA"}]})");
  const nlohmann::ordered_json a = r.of(shape("a"));
  ASSERT_EQ(a.size(), 2u);
  EXPECT_EQ(a[0], (nlohmann::ordered_json{{"peer", "cudnn"}, {"median_us", 5.5}, {"tflops", 682}, {"sustained", {{"tflops", 577}}}}));
  EXPECT_EQ(a[1]["why"], "does not do MLA");
  EXPECT_TRUE(r.of(shape("c")).empty());
  EXPECT_EQ(r.facts()["machine"]["torch"], "2.11");
  EXPECT_EQ(r.facts()["not_installed"]["flashinfer"], "not installed");
}

TEST_F(Peers, WhatIsNotComparableIsRefused) {
  EXPECT_NE(error_of([] { PeerResults("/nonexistent.json", "x"); }, ErrorCode::io).find("--peers /nonexistent.json: "), std::string::npos);
  EXPECT_NE(refusal("no JSON").find("got no results of peers"), std::string::npos);
  EXPECT_NE(refusal(R"({"gpu": "NVIDIA H200"})").find("wanted JSON with gpu and rows"), std::string::npos);
  EXPECT_NE(refusal(R"({"gpu": "NVIDIA A100", "rows": []})").find("got figures of 'NVIDIA A100', wanted some of this GPU, 'NVIDIA H200'"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"gpu": "NVIDIA H200", "shrink": 64, "rows": []})").find("got a dry run"), std::string::npos);
  EXPECT_NE(
      refusal(R"({"gpu": "NVIDIA H200", "rows": [{"shape": "a", "peer": "cudnn"}]})").find("wanted shape, peer, and median_us or why"),
      std::string::npos);
  const PeerResults other = read(R"({"gpu": "NVIDIA H200", "rows": [{"shape": "a", "peer": "cudnn", "median_us": 5.5, "flop": 99}]})");
  EXPECT_NE(error_of([&] { other.of(shape("a")); }).find("a: got 99 FLOP, wanted the 25600 of this row"), std::string::npos);
}

}  // namespace
}  // namespace kvloom::cli
