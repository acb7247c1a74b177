#include "data/token_bytes.h"

#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"

namespace overtok {
namespace {

// Expected values: len(bytes.decode("utf-8", "replace").encode()) of Python.
TEST(TokenBytesTest, ReplacedLength) {
  EXPECT_EQ(ReplacedUtf8Length(""), 0);
  EXPECT_EQ(ReplacedUtf8Length("abc"), 3);
  EXPECT_EQ(ReplacedUtf8Length("\xC3\xA9"), 2);
  EXPECT_EQ(ReplacedUtf8Length("\xF0\x9F\x98\x80"), 4);
  EXPECT_EQ(ReplacedUtf8Length("\xC3"), 3);
  EXPECT_EQ(ReplacedUtf8Length("\xA9"), 3);
  EXPECT_EQ(ReplacedUtf8Length("\xF0\x9F\x98"), 3);       // one piece
  EXPECT_EQ(ReplacedUtf8Length("\xF0\x9F\x98 x"), 5);     // one piece, then text
  EXPECT_EQ(ReplacedUtf8Length("\x98\x80"), 6);           // two pieces
  EXPECT_EQ(ReplacedUtf8Length("\xE0\x80\x80"), 9);       // overlong
  EXPECT_EQ(ReplacedUtf8Length("\xED\xA0\x80"), 9);       // a surrogate
  EXPECT_EQ(ReplacedUtf8Length("\xF4\x90\x80\x80"), 12);  // above U+10FFFF
  EXPECT_EQ(ReplacedUtf8Length("\xC0\xAF"), 6);
  EXPECT_EQ(ReplacedUtf8Length("a\xE2\x82"
                               "b"),
            5);
  EXPECT_EQ(ReplacedUtf8Length(" \xE2\x82"), 4);
}

TEST(TokenBytesTest, TablesOfTheByteTokenizer) {
  const auto tokenizer = LoadTokenizer("bytes", TokenizerOptions());
  OT_ASSERT_OK(tokenizer);
  const TokenBytes bytes(**tokenizer);
  ASSERT_EQ(bytes.exact.size(), 258u);
  EXPECT_EQ(bytes.exact['a'], 1);
  EXPECT_EQ(bytes.exact[0xC3], 1);
  EXPECT_EQ(bytes.levanter['a'], 1);
  EXPECT_EQ(bytes.levanter[0xC3], 3);
  EXPECT_EQ(bytes.exact[256], 0);
  EXPECT_EQ(bytes.levanter[257], 0);
}

}  // namespace
}  // namespace overtok
