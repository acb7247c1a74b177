// Bytes: the alphabet of tokenizer.json, the raw-byte tokenizer, UTF-8 checks and NFC.
#include <set>

#include "data/tokenizer/byte_alphabet.h"
#include "data/tokenizer/byte_tokenizer.h"
#include "data/tokenizer/utf8.h"
#include "tests/data/tokenizer/sample.h"
#include "tests/support/temporary_directory.h"

namespace overtok {
namespace {

using ::overtok::testing::Ids;

TEST(ByteAlphabet, IsGpt2s) {
  EXPECT_EQ(ToByteAlphabet(" "), "\u0120");
  EXPECT_EQ(ToByteAlphabet("\n"), "\u010A");
  EXPECT_EQ(ToByteAlphabet(absl::string_view("\0", 1)), "\u0100");
  EXPECT_EQ(ToByteAlphabet("\x7F\xA0\xAD"), "\u0121\u0142\u0143");
  EXPECT_EQ(ToByteAlphabet("!~\xC3\xA9"), "!~\u00C3\u00A9");
  EXPECT_EQ(ByteAlphabetOrder(0), '!');
  EXPECT_EQ(ByteAlphabetOrder(188), 0);  // the first byte with a stand-in
  EXPECT_EQ(ByteAlphabetOrder(255), 0xAD);
}

TEST(ByteAlphabet, IsOneToOne) {
  std::string all;
  std::set<uint32_t> runes;
  std::set<int> order;
  for (int byte = 0; byte < 256; ++byte) {
    all.push_back(static_cast<char>(byte));
    runes.insert(ByteAlphabetRune(static_cast<uint8_t>(byte)));
    order.insert(ByteAlphabetOrder(byte));
  }
  EXPECT_EQ(runes.size(), 256u);
  EXPECT_EQ(order.size(), 256u);
  EXPECT_EQ(FromByteAlphabet(ToByteAlphabet(all)), all);
  for (const char* outside : {" ", "\u00AD", "\u0144", "\u4F60", "\n", "\U0001F600"}) {
    EXPECT_FALSE(FromByteAlphabet(outside).has_value()) << outside;
  }
}

TEST(ByteTokenizer, IdsAreTheBytes) {
  auto tokenizer = LoadTokenizer("bytes", {});
  OT_ASSERT_OK(tokenizer);
  EXPECT_EQ((*tokenizer)->vocab_size(), 258);
  EXPECT_EQ((*tokenizer)->bos(), 256u);
  EXPECT_EQ((*tokenizer)->eos(), 257u);
  EXPECT_EQ(Ids(**tokenizer, "a\u00e9"), (std::vector<uint32_t>{'a', 0xC3, 0xA9}));
  EXPECT_EQ((*tokenizer)->Decode({256, 'h', 0xC3, 0xA9, 257}), "h\u00e9");
  EXPECT_TRUE((*tokenizer)->IsSpecial(257));
  EXPECT_FALSE((*tokenizer)->IsSpecial(255));
  TokenizerOptions options;
  options.eos = "</s>";
  OT_EXPECT_ERROR(LoadTokenizer("bytes", options), "takes no pattern");
}

TEST(Utf8, NamesTheFirstByteThatIsWrong) {
  struct Case {
    std::string text;
    const char* offset;
  };
  const std::vector<Case> cases = {{"abc\xFFxyz", "offset 3 "},
                                   {"\xC0\x80", "offset 0 "},
                                   {"\u4F60\xE4\xBD", "offset 3 "},
                                   {"ok \xED\xA0\x80", "offset 3 "},
                                   {"\xF4\x90\x80\x80", "offset 0 "},
                                   {"\u00e9\x80", "offset 2 "},
                                   {std::string(1000, 'a') + "\xE4\xBDz", "offset 1000 "}};
  auto tokenizer = LoadTokenizer("bytes", {});
  OT_ASSERT_OK(tokenizer);
  for (const Case& c : cases) {
    OT_EXPECT_ERROR(CheckUtf8(c.text), c.offset);
    std::vector<uint32_t> ids = {1, 2};
    OT_EXPECT_ERROR((*tokenizer)->Encode(c.text, false, &ids), c.offset);
    EXPECT_EQ(ids, (std::vector<uint32_t>{1, 2}));
  }
  OT_ASSERT_OK(CheckUtf8(absl::string_view("a\0b", 3)));
  OT_ASSERT_OK(CheckUtf8("\U0010FFFF\uFFFF"));
  OT_ASSERT_OK(CheckUtf8(""));
}

TEST(Utf8, NormalisesToNfcAndLeavesTheRestAlone) {
  std::string buffer;
  const std::string plain = "caf\u00e9 ASCII\n";
  auto same = NormalizeNfc(plain, &buffer);
  OT_ASSERT_OK(same);
  EXPECT_EQ(same->data(), plain.data());  // not copied
  auto composed = NormalizeNfc("e\u0301 \u1100\u1161\u11A8 \u212B", &buffer);
  OT_ASSERT_OK(composed);
  EXPECT_EQ(std::string(*composed), "\u00e9 \uAC01 \u00C5");
  const std::string zero("a\u0301\0b", 5);
  auto with_zero = NormalizeNfc(zero, &buffer);
  OT_ASSERT_OK(with_zero);
  EXPECT_EQ(std::string(*with_zero), std::string("\u00e1\0b", 4));
}

}  // namespace
}  // namespace overtok
