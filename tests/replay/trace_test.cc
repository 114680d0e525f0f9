// Trace readers: both formats, and every way a row can be bad.
#include "cli/replay/trace.h"

#include "cli/replay/row_parsers.h"
#include "cli/replay/synthetic_trace.h"
#include "kvloom/support/error.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace kvloom::replay {
namespace {

constexpr char kHeader[] = "TIMESTAMP,ContextTokens,GeneratedTokens\n";

struct Read {
  std::vector<TraceRequest> requests;
  int64_t skipped = 0;
  std::string first_skipped;
  std::string format;
  std::string error;  // of the Error thrown, if any
};

Read read_all(std::string_view text, bool skip_bad = false) {
  Read result;
  TraceReader reader("mem", std::make_unique<MemorySource>(text), skip_bad);
  try {
    for (TraceRequest r; reader.next(r);) result.requests.push_back(r);
  } catch (const Error& e) {
    result.error = e.what();
  }
  result.skipped = reader.skipped_rows();
  result.first_skipped = reader.first_skipped();
  result.format = reader.format();
  return result;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(TraceReader, ReadsAzureRowsWithTheirArrivalFromTheFirst) {
  const Read r = read_all(std::string(kHeader) +
                          "2023-11-16 18:15:46.6805900,374,44\n"
                          "2023-11-16 18:15:50.9951690,396,109\n");
  EXPECT_EQ(r.error, "");
  EXPECT_EQ(r.format, "azure-csv");
  ASSERT_EQ(r.requests.size(), 2u);
  EXPECT_EQ(r.requests[0].arrival_ns, 0);
  EXPECT_EQ(r.requests[0].prompt_tokens, 374);
  EXPECT_EQ(r.requests[0].output_tokens, 44);
  EXPECT_EQ(r.requests[0].line, 2);
  EXPECT_EQ(r.requests[1].arrival_ns, 4'314'579'000);
  EXPECT_TRUE(r.requests[1].blocks.empty());
}

TEST(TraceReader, ReadsMooncakeRowsWithTheirBlocks) {
  const Read r = read_all(
      "{\"timestamp\": 5, \"input_length\": 1025, \"output_length\": 3, \"hash_ids\": [0, 7, 9]}\n"
      "{\"timestamp\": 8, \"input_length\": 512, \"output_length\": 0, \"hash_ids\": [0]}\n");
  EXPECT_EQ(r.error, "");
  EXPECT_EQ(r.format, "mooncake-jsonl");
  ASSERT_EQ(r.requests.size(), 2u);
  EXPECT_EQ(r.requests[0].blocks, (std::vector<uint64_t>{0, 7, 9}));
  EXPECT_EQ(r.requests[0].block_tokens, 512);
  EXPECT_EQ(r.requests[1].arrival_ns, 3'000'000);
  EXPECT_EQ(r.requests[1].output_tokens, 0);
}

TEST(TraceReader, AcceptsMarksLineEndsAndFilesCutAfterTheLastDigit) {
  const std::string row = "2023-11-16 18:15:46.6805900,374,44";
  for (const std::string& text :
       {"\xef\xbb\xbf" + std::string(kHeader) + row, std::string("TIMESTAMP,ContextTokens,GeneratedTokens\r\n") + row + "\r\n",
        std::string(kHeader) + row + "\n\n\r\n  \n", row,
        std::string("a,GeneratedTokens, ContextTokens ,TIMESTAMP\nx,44, 374,2023-11-16T18:15:46Z\n")}) {
    const Read r = read_all(text);
    EXPECT_EQ(r.error, "") << text;
    ASSERT_EQ(r.requests.size(), 1u) << text;
    EXPECT_EQ(r.requests[0].prompt_tokens, 374);
    EXPECT_EQ(r.requests[0].output_tokens, 44);
  }
}

TEST(TraceReader, EmptyTracesAreFine) {
  for (const char* text : {"", "\n", "\n \n", kHeader, "TIMESTAMP,ContextTokens,GeneratedTokens", "\xef\xbb\xbf"}) {
    const Read r = read_all(text);
    EXPECT_EQ(r.error, "") << text;
    EXPECT_TRUE(r.requests.empty());
    EXPECT_EQ(r.skipped, 0);
  }
}

struct BadRow {
  const char* row;
  const char* says;
};

// Line 1 is the header, line 2 a good row, line 3 the bad one, line 4 a good row.
const BadRow kBadAzureRows[] = {
    {"2023-11-16 18:15:50.9951690,396", "cut short"},
    {"2023-11-16 18:15:50.9951690,396,", "GeneratedTokens: got '', wanted a whole number"},
    {"2023-11-16 18:15:50.9951690", "cut short"},
    {"", "got an empty row"},
    {"   ", "got an empty row"},
    {",,", "TIMESTAMP: got ''"},
    {"2023-11-16 18:15:45.0000000,396,109", "wanted rows sorted by arrival"},
    {"2023-11-16 18:15:50.9951690,three,109", "ContextTokens: got 'three', wanted a whole number"},
    {"2023-11-16 18:15:50.9951690,396,0x10", "GeneratedTokens: got '0x10'"},
    {"2023-11-16 18:15:50.9951690,396,1e3", "GeneratedTokens: got '1e3'"},
    {"2023-11-16 18:15:50.9951690,396,12.5", "GeneratedTokens: got '12.5'"},
    {"2023-11-16 18:15:50.9951690,-396,109", "ContextTokens: got '-396', wanted 1 to 16777216"},
    {"2023-11-16 18:15:50.9951690,0,109", "ContextTokens: got '0', wanted 1 to 16777216"},
    {"2023-11-16 18:15:50.9951690,396,-1", "GeneratedTokens: got '-1', wanted 0 to 16777216"},
    {"2023-11-16 18:15:50.9951690,396,16777217", "GeneratedTokens: got '16777217', wanted 0 to 16777216"},
    {"2023-11-16 18:15:50.9951690,99999999999999999999999999,1", "ContextTokens: got '99999999999999999999999999', wanted"},
    {"2023-13-16 18:15:50.9951690,396,109", "TIMESTAMP: got '2023-13-16"},
    {"2023-02-29 18:15:50.9951690,396,109", "TIMESTAMP"},
    {"2023-11-16 24:15:50.9951690,396,109", "TIMESTAMP"},
    {"2023-11-16 18:15:50.,396,109", "TIMESTAMP"},
    {"9999-11-16 18:15:50.9951690,396,109", "TIMESTAMP"},
    {"yesterday,396,109", "TIMESTAMP: got 'yesterday'"},
    {"\xff\xfe\x01,396,109", "got '\\xff\\xfe\\x01'"},
};

TEST(TraceReader, NamesTheLineOfEveryBadAzureRowAndSkipsItWhenAsked) {
  for (const BadRow& bad : kBadAzureRows) {
    const std::string text =
        std::string(kHeader) + "2023-11-16 18:15:46.6805900,374,44\n" + bad.row + "\n2023-11-16 18:15:51.2224670,879,55\n";
    const Read strict = read_all(text);
    EXPECT_EQ(strict.requests.size(), 1u) << bad.row;
    EXPECT_TRUE(contains(strict.error, "trace mem: line 3: ")) << bad.row << "\n" << strict.error;
    EXPECT_TRUE(contains(strict.error, bad.says)) << bad.row << "\n" << strict.error;
    EXPECT_TRUE(contains(strict.error, "--skip-bad"));
    const Read lenient = read_all(text, true);
    EXPECT_EQ(lenient.error, "");
    EXPECT_EQ(lenient.requests.size(), 2u) << bad.row;
    EXPECT_EQ(lenient.skipped, 1) << bad.row;
    EXPECT_TRUE(contains(lenient.first_skipped, bad.says));
  }
}

const BadRow kBadMooncakeRows[] = {
    {"{\"timestamp\": 5, \"input_length\": 10, \"output_le", "cut short"},
    {"[1, 2]", "wanted a JSON object"},
    {"", "got an empty row"},
    {"null", "wanted a JSON object"},
    {"{}", "timestamp: missing"},
    {"{\"timestamp\": 5, \"input_length\": 10}", "output_length: missing"},
    {"{\"timestamp\": 5, \"input_length\": \"10\", \"output_length\": 1}", "input_length: got '\"10\"', wanted a whole number"},
    {"{\"timestamp\": 5, \"input_length\": 10.5, \"output_length\": 1}", "input_length: got '10.5', wanted a whole number"},
    {"{\"timestamp\": 5, \"input_length\": [10], \"output_length\": 1}", "input_length: got an array"},
    {"{\"timestamp\": -5, \"input_length\": 10, \"output_length\": 1}", "timestamp: got '-5'"},
    {"{\"timestamp\": 5, \"input_length\": -10, \"output_length\": 1}", "input_length: got '-10', wanted 1 to 16777216"},
    {"{\"timestamp\": 5, \"input_length\": 0, \"output_length\": 1}", "input_length: got '0'"},
    {"{\"timestamp\": 5, \"input_length\": 18446744073709551615, \"output_length\": 1}", "input_length: got '18446744073709551615'"},
    {"{\"timestamp\": 1e300, \"input_length\": 1, \"output_length\": 1}", "timestamp: got '1e+300'"},
    {"{\"timestamp\": 9223372036854775807, \"input_length\": 1, \"output_length\": 1}", "timestamp: got '9223372036854775807'"},
    {"{\"timestamp\": 0, \"input_length\": 10, \"output_length\": 1}", "wanted rows sorted by arrival"},
    {"{\"timestamp\": 5, \"input_length\": 513, \"output_length\": 1, \"hash_ids\": [4]}", "hash_ids: got 1 ids, wanted 2"},
    {"{\"timestamp\": 5, \"input_length\": 10, \"output_length\": 1, \"hash_ids\": [-4]}", "hash_ids: got '-4'"},
    {"{\"timestamp\": 5, \"input_length\": 10, \"output_length\": 1, \"hash_ids\": {\"a\": 1}}", "hash_ids: got an object"},
    {"{\"timestamp\": 5, \"input_length\": 10, \"output_length\": 1} x", "wanted a JSON object"},
};

TEST(TraceReader, NamesTheLineOfEveryBadMooncakeRowAndSkipsItWhenAsked) {
  for (const BadRow& bad : kBadMooncakeRows) {
    const std::string text = std::string("{\"timestamp\": 2, \"input_length\": 10, \"output_length\": 1}\n") + bad.row +
                             "\n{\"timestamp\": 9, \"input_length\": 11, \"output_length\": 2}";
    const Read strict = read_all(text);
    EXPECT_EQ(strict.requests.size(), 1u) << bad.row;
    EXPECT_TRUE(contains(strict.error, "trace mem: line 2: ")) << bad.row << "\n" << strict.error;
    EXPECT_TRUE(contains(strict.error, bad.says)) << bad.row << "\n" << strict.error;
    const Read lenient = read_all(text, true);
    EXPECT_EQ(lenient.requests.size(), 2u) << bad.row;
    EXPECT_EQ(lenient.skipped, 1) << bad.row;
  }
}

TEST(TraceReader, HugeRowsAreRefusedInBoundedMemory) {
  const std::string huge(3 * LineReader::kMaxLineBytes, '7');
  const Read strict = read_all(std::string(kHeader) + huge + "\n2023-11-16 18:15:46.6805900,374,44\n");
  EXPECT_TRUE(contains(strict.error, "line 2: row: got more than 1048576 bytes")) << strict.error;
  const Read lenient = read_all(std::string(kHeader) + huge + "\n2023-11-16 18:15:46.6805900,374,44\n", true);
  EXPECT_EQ(lenient.skipped, 1);
  ASSERT_EQ(lenient.requests.size(), 1u);
  EXPECT_EQ(lenient.requests[0].line, 3);
}

/// Sevens without an end.
struct Endless : ByteSource {
  int64_t bytes = 0;
  size_t read(char* out, size_t size) override {
    std::memset(out, '7', size);
    bytes += int64_t(size);
    return size;
  }
};

TEST(TraceReader, ALineWithoutAnEndIsGivenOnceItIsTooLong) {
  Endless source;
  LineReader lines(source);
  Line line;
  ASSERT_TRUE(lines.next(line));
  EXPECT_TRUE(line.too_long);
  EXPECT_EQ(line.text.size(), LineReader::kMaxLineBytes);
  EXPECT_LE(source.bytes, int64_t(2 * LineReader::kMaxLineBytes));
}

TEST(TraceReader, DeeplyNestedJsonIsRefusedNotFollowed) {
  const std::string deep(200'000, '[');
  EXPECT_TRUE(contains(read_all("{\"timestamp\": " + deep + "\n").error, "cut short"));
  const std::string closed = deep + std::string(deep.size(), ']');
  const Read r = read_all("{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [" + closed + "]}\n");
  EXPECT_TRUE(contains(r.error, "hash_ids: got an array")) << r.error;
}

TEST(TraceReader, AFileOfNeitherFormatIsNamed) {
  for (const char* text : {"hello\n1,2,3\n", "TIMESTAMP,ContextTokens\n",
                           "\x7f"
                           "ELF\x02\x01"}) {
    const Read r = read_all(text, true);
    EXPECT_TRUE(contains(r.error, "trace mem: line 1: format: got '")) << r.error;
  }
}

TEST(TraceReader, FilesThatCannotBeReadAreNamed) {
  try {
    open_trace("/nonexistent/trace.csv", false);
    FAIL() << "opened a file that is not there";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::io);
    EXPECT_TRUE(contains(e.what(), "/nonexistent/trace.csv: cannot open: No such file")) << e.what();
  }
  TraceReader reader("dir", std::make_unique<FileSource>("/"), false);
  TraceRequest r;
  EXPECT_THROW(reader.next(r), Error);
}

TEST(TraceReader, ReadsAFileThatIsLargerThanItsBuffer) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "kvloom_trace_test.csv";
  {
    std::ofstream file(path, std::ios::binary);
    file << kHeader;
    for (int i = 0; i < 6000; ++i) file << "2023-11-16 18:" << 10 + i / 600 << ":" << 10 + i % 600 / 12 << ".0000000," << i + 1 << ",5\r\n";
  }
  TraceReader reader("file", std::make_unique<FileSource>(path.string()), false);
  int64_t rows = 0, sum = 0;
  for (TraceRequest r; reader.next(r); ++rows) sum += r.prompt_tokens;
  std::filesystem::remove(path);
  EXPECT_EQ(rows, 6000);
  EXPECT_EQ(sum, int64_t(6000) * 6001 / 2);
}

TEST(Timestamp, CountsDaysAsTheCalendarDoes) {
  int64_t ns = 0;
  EXPECT_TRUE(parse_timestamp("1970-01-01 00:00:00", ns));
  EXPECT_EQ(ns, 0);
  EXPECT_TRUE(parse_timestamp("2000-02-29 12:00:00.5", ns));
  EXPECT_EQ(ns, 951825600'500'000'000);
  EXPECT_TRUE(parse_timestamp("2023-11-16T18:15:46.6805900+01:30", ns));
  EXPECT_EQ(ns, 1700153146'680'590'000);
  EXPECT_TRUE(parse_timestamp("2024-05-10 00:00:00.1234567899999", ns));
  EXPECT_EQ(ns % 1'000'000'000, 123456789);
  EXPECT_FALSE(parse_timestamp("1900-02-29 00:00:00", ns));
  EXPECT_FALSE(parse_timestamp("1970-01-01 00:00:00+01:00", ns));  // before 1970
}

TEST(SyntheticTrace, IsAFunctionOfItsSeed) {
  SyntheticOptions options;
  options.requests = 400;
  const std::vector<TraceRequest> a = synthetic_trace(options), b = synthetic_trace(options);
  options.seed = 2;
  const std::vector<TraceRequest> c = synthetic_trace(options);
  ASSERT_EQ(a.size(), 400u);
  int64_t differs = 0, sharing = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].prompt_tokens, b[i].prompt_tokens);
    EXPECT_EQ(a[i].blocks, b[i].blocks);
    EXPECT_EQ(a[i].arrival_ns, b[i].arrival_ns);
    differs += a[i].prompt_tokens != c[i].prompt_tokens;
    sharing += a[i].blocks[0] < 1'000'000;
    EXPECT_GE(a[i].prompt_tokens, 1);
    EXPECT_GE(a[i].output_tokens, 1);
    EXPECT_GE(a[i].arrival_ns, i > 0 ? a[i - 1].arrival_ns : 0);
    EXPECT_EQ(int64_t(a[i].blocks.size()), (a[i].prompt_tokens + 127) / 128);
  }
  EXPECT_GT(differs, 350);
  EXPECT_NEAR(double(sharing), 200.0, 50.0);
}

TEST(SyntheticTrace, LengthsAreSpreadLikeALogNormal) {
  SyntheticOptions options;
  options.requests = 4000;
  options.shared_percent = 0;
  std::vector<int64_t> lengths;
  for (const TraceRequest& r : synthetic_trace(options)) lengths.push_back(r.prompt_tokens);
  std::sort(lengths.begin(), lengths.end());
  EXPECT_NEAR(double(lengths[2000]), 384.0, 50.0);
  const double up = double(lengths[3364]) / double(lengths[2000]), down = double(lengths[2000]) / double(lengths[636]);
  EXPECT_NEAR(up, 2.38, 0.4);    // one standard deviation: 2^1.25
  EXPECT_NEAR(down, 2.38, 0.4);  // and as far below the median as above it
}

}  // namespace
}  // namespace kvloom::replay
