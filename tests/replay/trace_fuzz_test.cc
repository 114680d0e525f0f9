// The fuzzer's body on a fixed set of inputs: good traces, mutated by a seeded generator. Runs without a fuzzing compiler.
#include "tests/fuzz/trace_fuzz_body.h"

#include "cli/replay/random.h"

#include <gtest/gtest.h>

namespace kvloom::replay {
namespace {

constexpr const char* kSeeds[] = {
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951690,396,109\n",
    "{\"timestamp\": 0, \"input_length\": 1025, \"output_length\": 3, \"hash_ids\": [0, 7, 9]}\n"
    "{\"timestamp\": 8, \"input_length\": 512, \"output_length\": 0, \"hash_ids\": [0]}\n",
    "\xef\xbb\xbfTIMESTAMP,GeneratedTokens,ContextTokens\n2024-05-10 00:00:00.009930+00:00,1,1",
    "",
};
constexpr const char* kPieces[] = {"\n",   "\r\n", ",",    "-1",      "99999999999999999999", "{", "}", "[", "\"", ":", "e9", ".",
                                   "\xff", " ",    "null", "hash_ids"};

std::string mutate(std::string text, Random& random) {
  for (int64_t edits = 1 + random.below(4); edits > 0; --edits) {
    const size_t at = size_t(random.below(int64_t(text.size()) + 1));
    switch (random.below(4)) {
      case 0:
        text.resize(at);
        break;
      case 1:
        text.insert(at, kPieces[random.below(std::size(kPieces))]);
        break;
      case 2:
        if (at < text.size()) text[at] = char(random.below(256));
        break;
      case 3:
        text.erase(at, size_t(random.below(8)));
        break;
    }
  }
  return text;
}

TEST(TraceFuzz, MutatedTracesBreakNoPromise) {
  Random random(20231116);
  for (const char* seed : kSeeds) {
    fuzz_trace(seed);
    for (int i = 0; i < 5000; ++i) fuzz_trace(mutate(seed, random));
  }
}

}  // namespace
}  // namespace kvloom::replay
