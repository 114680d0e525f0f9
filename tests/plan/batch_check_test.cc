// A malformed batch is refused with the array, the request and the value in the message. Odd but valid batches are planned.
#include "kvloom/plan/batch_check.h"
#include "kvloom/plan/validate.h"
#include "kvloom/support/error.h"
#include "random_batches.h"

#include <gtest/gtest.h>

namespace kvloom {
namespace {

using test::gpu_config;
using test::small_spec;
using test::TestBatch;

class BatchCheck : public testing::Test {
 protected:
  AttentionSpec spec = small_spec(8, 2);
  TestBatch b{{1, 2, 3}, {20, 40, 60}, spec};
  Capacity capacity = roomy();

  static Capacity roomy() {
    Capacity c;
    c.max_requests = 10;
    c.max_query_tokens = 100;
    c.max_kv_tokens = 10000;
    c.max_level_rows = 20;
    return c;
  }
  void plan() {
    plan::Planner planner(spec, capacity, gpu_config(4, Policy::automatic));
    const test::PlanBuffer buffer(planner.layout().plan_bytes);
    planner.plan(b.batch, buffer.data, buffer.bytes);
    ASSERT_EQ(plan::validate_plan(buffer.data, buffer.bytes, spec, true), "");
  }
  void refuse(const std::string& wanted, ErrorCode code = ErrorCode::invalid_argument) {
    try {
      plan();
      ADD_FAILURE() << "planned, wanted: " << wanted;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), code) << e.what();
      EXPECT_NE(std::string(e.what()).find(wanted), std::string::npos) << e.what();
    }
  }
};

TEST_F(BatchCheck, IndptrDecreases) {
  b.qo_indptr = {0, 3, 2, 6};
  refuse("qo_indptr: request 1: got 2 after 3");
}
TEST_F(BatchCheck, IndptrBeginsElsewhere) {
  b.qo_indptr = {1, 3, 4, 6};
  refuse("qo_indptr: request 0: got 1, wanted 0");
}
TEST_F(BatchCheck, IndptrHasTheWrongLength) {
  b.batch.qo_indptr.size = 3;
  refuse("qo_indptr: got 3 entries, wanted num_requests + 1 = 4");
}
TEST_F(BatchCheck, AsManyRequestsAsAnIntHolds) {
  capacity.max_requests = b.batch.num_requests = INT32_MAX;
  try {
    plan::check_batch(spec, capacity, b.batch);
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "plan: qo_indptr: got 4 entries, wanted num_requests + 1 = 2147483648");
  }
}
TEST_F(BatchCheck, NullPointers) {
  b.batch.qo_indptr.data = nullptr;
  refuse("qo_indptr: got a null pointer");
  b.bind().kv_len.data = nullptr;
  refuse("kv_len: got a null pointer");
  b.bind().list_indptr.data = nullptr;
  refuse("list_indptr: got a null pointer");
  b.bind().pages = {};
  refuse("pages: request 0: got 0 entries");
}
TEST_F(BatchCheck, NegativeNumbers) {
  b.kv_len[2] = -1;
  refuse("kv_len: request 2: got -1");
  b.kv_len[2] = 60;
  b.list_indptr[1] = -2;
  refuse("list_indptr: request 0: got -2 after 0");
  b.list_indptr[0] = -2;
  refuse("list_indptr: request 0: got -2, wanted 0 or more");
  b.bind().num_requests = -1;
  refuse("num_requests: got -1");
}
TEST_F(BatchCheck, LengthsDisagree) {
  b.batch.kv_len.size = 2;
  refuse("kv_len: got 2 entries, wanted 3");
  b.bind().list_indptr.size = 2;
  refuse("list_indptr: got 2 entries, wanted 3 or 4");
}
TEST_F(BatchCheck, PagesTooFewForTheLength) {
  b.kv_len[1] = 49;  // 4 pages of 16; the list has 3
  refuse("list_indptr: request 1: got 3 pages, wanted 4 for kv_len = 49");
}
TEST_F(BatchCheck, ListRunsPastThePages) {
  b.batch.list_indptr.size = 3;  // no end given
  b.kv_len[2] = 65;              // 5 pages from entry 5: 10
  refuse("pages: request 2: got 9 entries, wanted 10");
}
TEST_F(BatchCheck, RaggedListIsShorterThanTheLength) {
  spec = small_spec(8, 2, Storage::ragged);
  b = TestBatch({1, 2, 3}, {20, 40, 60}, spec);
  b.bind();
  b.kv_len[1] = 41;
  refuse("list_indptr: request 1: got 40 tokens, wanted 41");
}
TEST_F(BatchCheck, DenseTable) {
  b.batch.table_stride = 4;
  refuse("list_indptr: got one beside table_stride = 4");
  b.batch.list_indptr = {};
  b.pages.resize(12);
  b.batch.pages = IndexView(b.pages.data(), 12);
  plan();
  b.batch.pages.size = 11;
  refuse("pages: request 2: got 11 entries, wanted 12");
  b.batch.table_stride = 3;
  refuse("kv_len: request 2: got 60 tokens, which take 4 pages of 16, wanted at most table_stride = 3");
}
TEST_F(BatchCheck, DenseTableNeedsPages) {
  spec = small_spec(8, 2, Storage::ragged);
  b.batch.table_stride = 4;
  refuse("table_stride: got 4 with ragged storage");
}
TEST_F(BatchCheck, Positions) {
  b.q_pos0 = {0, 1, 2};
  b.q_pos = {0, 1, 2, 3, 4, 5};
  b.bind();
  refuse("q_pos and q_pos0: got both");
  b.q_pos0.clear();
  b.q_pos[3] = INT32_MAX;
  b.bind();
  refuse("q_pos: token 3: got 2147483647");
  b.q_pos.clear();
  b.prefix = {0, -1, 0};
  b.bind();
  refuse("prefix: request 1: got -1");
}
TEST_F(BatchCheck, PagePositionsNeedPages) {
  spec = small_spec(8, 2, Storage::ragged);
  b.batch.kv_position = KvPosition::page_id;
  refuse("kv_position: got page_id with ragged storage");
}
TEST_F(BatchCheck, ListTooLong) {
  b.kv_len[0] = INT32_MAX;
  refuse("kv_len: request 0: got 2147483647");
}
TEST_F(BatchCheck, PerHeadNamesTheHead) {
  b.batch.lists_per_kv_head = true;
  refuse("kv_len: got 3 entries, wanted 6");
  b.kv_len = {1, 2, 3, -4, 5, 6};
  b.bind().lists_per_kv_head = true;
  refuse("kv_len: request 1, KV head 1: got -4");
}

class GroupCheck : public BatchCheck {
 protected:
  GroupCheck() {
    for (int32_t level : {0, 1}) {
      LevelGroup g;
      g.level = level;
      g.kv_end = 16;
      b.groups.push_back(g);
      b.group_tokens.push_back({0, 1, 2, 3, 4, 5});
    }
    b.bind();
  }
};

TEST_F(GroupCheck, Plain) { plan(); }
TEST_F(GroupCheck, TokenNamedTwiceInAGroup) {
  b.group_tokens[0] = {0, 3, 0};
  b.bind();
  refuse("groups[0].tokens: query token 0: got a second group of level 0");
}
TEST_F(GroupCheck, TokenNamedTwiceInALevel) {
  b.groups[1].level = 0;
  refuse("groups[1].tokens: query token 0: got a second group of level 0");
  b.groups[0].kv_head = 0;  // of different heads: no clash
  b.groups[1].kv_head = 1;
  plan();
}
TEST_F(GroupCheck, TokenOutOfRange) {
  b.group_tokens[1][2] = 6;
  refuse("groups[1].tokens[2]: got 6, wanted 0 to 5");
}
TEST_F(GroupCheck, BadFields) {
  b.groups[1].kv_head = 2;
  refuse("groups[1].kv_head: got 2");
  b.groups[1].kv_head = -1;
  b.groups[1].kv_begin = 17;
  refuse("groups[1].kv_end: got 16, wanted 17");
  b.groups[1].kv_begin = 0;
  b.groups[1].kv_end = 16 * 9 + 1;
  refuse("pages: groups[1]: got 9 entries, wanted 10");
  b.groups[1].kv_end = 16;
  b.groups[0].level = -1;
  refuse("groups[0].level: got -1");
}
TEST_F(GroupCheck, TokensWithoutEnd) {  // refused before one of them is read
  b.groups[1].tokens.size = -1;
  refuse("groups[1].tokens.size: got -1, wanted 0 to 6");
  b.groups[1].tokens.size = INT64_MAX;
  refuse("groups[1].tokens.size: got 9223372036854775807, wanted 0 to 6");
}
TEST_F(GroupCheck, MoreLevelRowsThanTheCapacity) {
  capacity.max_level_rows = 5;
  refuse("got 6 namings of query tokens beyond the first of each, wanted at most Capacity.max_level_rows = 5", ErrorCode::over_capacity);
}
TEST_F(GroupCheck, PositionsMustBeKnown) {
  b.batch.kv_len = {};
  refuse("got neither kv_len, q_pos nor q_pos0");
  b.q_pos0 = {0, 5, 9};
  b.batch.q_pos0 = b.q_pos0.data();
  plan();
}
TEST_F(GroupCheck, NotBesidePerHeadLists) {
  b.batch.lists_per_kv_head = true;
  refuse("groups: got 2 beside lists_per_kv_head");
}
TEST_F(GroupCheck, RowsThatNoGroupNamesAreStillWritten) {
  b.group_tokens[0] = {0};
  b.group_tokens[1] = {5};
  b.bind();
  plan();
  b.groups[0].kv_head = 1;
  plan();
}

TEST_F(BatchCheck, EmptyThingsAreValid) {
  plan();
  for (const auto& [q, kv] : std::vector<std::pair<std::vector<int32_t>, std::vector<int32_t>>>{
           {{}, {}}, {{0}, {0}}, {{0, 0}, {5, 0}}, {{1}, {0}}, {{3, 0, 1}, {0, 0, 0}}, {{5}, {2}}}) {
    b = TestBatch(q, kv, spec);
    b.bind();
    plan();
  }
  b = TestBatch();  // not even arrays
  plan();
}

}  // namespace
}  // namespace kvloom
