#include "kvloom/support/hash.h"

#include <gtest/gtest.h>

namespace kvloom {
namespace {

// FIPS 180-4's own examples.
TEST(Sha256, KnownAnswers) {
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, FieldsAreKeptApart) {
  EXPECT_NE(Sha256().add_field("ab").add_field("c").hex(), Sha256().add_field("a").add_field("bc").hex());
  EXPECT_EQ(Sha256().add("ab").add("c").hex(), sha256_hex("abc"));
}

// Of every length to some blocks, at once and in two parts.
TEST(Sha256, InstructionsAndArithmeticAgree) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(i * 37 + i / 7);
  EXPECT_EQ(Sha256::plain().add("abc").hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  for (size_t n = 0; n <= text.size(); ++n) {
    const std::string_view all = std::string_view(text).substr(0, n);
    ASSERT_EQ(sha256_hex(all), Sha256::plain().add(all).hex()) << n << " bytes";
    const size_t cut = n * 5 % (n + 1);
    ASSERT_EQ(sha256_hex(all), Sha256().add(all.substr(0, cut)).add(all.substr(cut)).hex()) << n << " bytes, cut at " << cut;
  }
}

}  // namespace
}  // namespace kvloom
