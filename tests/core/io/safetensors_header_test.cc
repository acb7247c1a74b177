#include "core/io/safetensors_header.h"

#include "tests/core/io/hand_made_safetensors.h"
#include "tests/support/temporary_directory.h"

namespace overtok {
namespace {

using ::overtok::testing::Entry;
using ::overtok::testing::Object;
using ::overtok::testing::SafetensorsBytes;

absl::StatusOr<SafetensorsHeader> Parse(const std::string& bytes) {
  return ParseSafetensorsHeader("w.safetensors", bytes.data(), static_cast<int64_t>(bytes.size()));
}
absl::StatusOr<SafetensorsHeader> Parse(const std::string& header, size_t data) {
  return Parse(SafetensorsBytes(header, std::string(data, '\0')));
}

TEST(SafetensorsHeader, SaysWhereTensorsAre) {
  const std::string text =
      absl::StrCat(R"({"__metadata__":{"format":"pt"},)", Entry("b", "F32", "[2,3]", 4, 28), ",",
                   Entry("a", "BF16", "[2]", 0, 4), ",", Entry("none", "F64", "[0,7]", 28, 28), ",",
                   Entry("one", "U8", "[]", 28, 29), "}   ");
  const auto header = Parse(text, 29);
  OT_ASSERT_OK(header);
  EXPECT_EQ(header->metadata.at("format"), "pt");
  ASSERT_EQ(header->tensors.size(), 4u);
  const SafetensorsEntry& a = header->tensors[0];
  const SafetensorsEntry& b = header->tensors[1];
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.type, StoredType::kBF16);
  EXPECT_EQ(a.begin, static_cast<int64_t>(8 + text.size()));
  EXPECT_EQ(b.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(b.elements, 6);
  EXPECT_EQ(b.begin, a.end);
  EXPECT_EQ(header->tensors[2].elements, 0);
  EXPECT_EQ(header->tensors[3].elements, 1);
}

TEST(SafetensorsHeader, NoTensorsAtAll) {
  const auto header = Parse("{}", 0);
  OT_ASSERT_OK(header);
  EXPECT_TRUE(header->tensors.empty());
}

TEST(SafetensorsHeader, RefusesLengths) {
  OT_EXPECT_ERROR(Parse(std::string("1234567")), "w.safetensors: has 7 bytes");
  OT_EXPECT_ERROR(Parse(std::string(8, '\0')), "does not begin with {");
  std::string cut = SafetensorsBytes(Object(Entry("a", "F32", "[1]", 0, 4)), "1234");
  OT_EXPECT_ERROR(Parse(cut.substr(0, 40)), "expected at most 32");
  OT_EXPECT_ERROR(Parse(cut.substr(0, cut.size() - 1)),
                  "a: data_offsets [0, 4] do not lie inside the 3 bytes");
  std::string huge = cut;
  huge[7] = '\x7f';  // 2^62 and more: no sum may overflow
  OT_EXPECT_ERROR(Parse(huge), "states a header of");
  huge.replace(0, 8, 8, '\xff');
  OT_EXPECT_ERROR(Parse(huge), "states a header of 18446744073709551615 bytes");
}

TEST(SafetensorsHeader, RefusesText) {
  OT_EXPECT_ERROR(Parse("{\"a\":", 0), "not valid JSON");
  OT_EXPECT_ERROR(Parse("[1,2]", 0), "does not begin with {");
  OT_EXPECT_ERROR(Parse("{\"a\":3}", 0), "a: expected a JSON object");
  OT_EXPECT_ERROR(Parse("{\"__metadata__\":{\"n\":3}}", 0), "n is not a text");
  OT_EXPECT_ERROR(Parse("{} {}", 0), "not valid JSON");
}

TEST(SafetensorsHeader, RefusesEntries) {
  const std::string a = Entry("a", "F32", "[1]", 0, 4);
  OT_EXPECT_ERROR(Parse(Object(a + "," + a), 4), "two entries named a");
  OT_EXPECT_ERROR(Parse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4),
                  "a: expected dtype, shape and data_offsets");
  OT_EXPECT_ERROR(Parse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"shape\":[1],"
                        "\"data_offsets\":[0,4]}}",
                        4),
                  "a: shape is given twice");
  OT_EXPECT_ERROR(Parse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],"
                        "\"stride\":1}}",
                        4),
                  "a: unknown key stride");
  OT_EXPECT_ERROR(Parse(Object(Entry("a", "F4", "[1]", 0, 4)), 4), "a: the type F4 is not known");
  OT_EXPECT_ERROR(Parse(Object(Entry("a", "F32", "[-1]", 0, 4)), 4), "a: shape: expected");
  OT_EXPECT_ERROR(Parse(Object(Entry("a", "F32", "[1.0]", 0, 4)), 4), "a: shape: expected");
  OT_EXPECT_ERROR(Parse(Object(Entry("a", "F32", "[9223372036854775808]", 0, 4)), 4),
                  "a: shape: expected");
  OT_EXPECT_ERROR(Parse(Object(Entry("a", "F32", "[4294967296,4294967296]", 0, 4)), 4),
                  "more than 2^63 bytes");
  OT_EXPECT_ERROR(Parse(Object(Entry("a", "F64", "[1152921504606846976]", 0, 4)), 4),
                  "more than 2^63 bytes");
  OT_EXPECT_ERROR(Parse(Object(Entry("a", "F32", "[2]", 0, 4)), 4), "are 4 bytes; F32 [2] takes 8");
  OT_EXPECT_ERROR(Parse(Object(Entry("a", "F32", "[1]", 4, 0)), 4), "do not lie inside");
}

TEST(SafetensorsHeader, RefusesOverlapsAndHoles) {
  const std::string a = Entry("a", "F32", "[2]", 0, 8);
  OT_EXPECT_ERROR(Parse(Object(a + "," + Entry("b", "F32", "[2]", 4, 12)), 12), "b and a overlap");
  OT_EXPECT_ERROR(Parse(Object(a + "," + Entry("b", "F32", "[2]", 0, 8)), 8), "overlap");
  OT_EXPECT_ERROR(Parse(Object(a + "," + Entry("b", "F32", "[1]", 12, 16)), 16),
                  "4 bytes of data before b belong to no tensor");
  OT_EXPECT_ERROR(Parse(Object(a), 9), "the last 1 bytes of data belong to no tensor");
}

// Whatever bytes are changed: an error or tensors that lie inside the file, never a crash.
TEST(SafetensorsHeader, DamagedHeadersDoNoHarm) {
  const std::string good = SafetensorsBytes(
      absl::StrCat(R"({"__metadata__":{"format":"pt"},)", Entry("a", "F32", "[2,3]", 0, 24), ",",
                   Entry("b\\u00e9", "BF16", "[4]", 24, 32), "}"),
      std::string(32, 'x'));
  OT_ASSERT_OK(Parse(good));
  uint64_t state = 1;
  const auto draw = [&state](uint64_t below) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return (state >> 33) % below;
  };
  int refused = 0;
  constexpr int kTries = 20000;
  for (int i = 0; i < kTries; ++i) {
    std::string bytes = good;
    for (uint64_t n = 1 + draw(3); n > 0; --n) {
      const size_t at = draw(bytes.size());
      if (draw(4) == 0) {
        bytes.erase(at, 1 + draw(4));
      } else {
        bytes[at] = draw(2) == 0 ? "0123456789[]{},:\""[draw(17)] : static_cast<char>(draw(256));
      }
    }
    const auto header = Parse(bytes);
    if (!header.ok()) {
      ++refused;
      continue;
    }
    for (const SafetensorsEntry& tensor : header->tensors) {
      ASSERT_GE(tensor.begin, 8);
      ASSERT_LE(tensor.end, static_cast<int64_t>(bytes.size()));
      ASSERT_EQ(tensor.end - tensor.begin, tensor.elements * SizeOf(tensor.type));
    }
  }
  EXPECT_GT(refused, kTries / 2);
  EXPECT_LT(refused, kTries) << "changed names and data are no errors";
}

}  // namespace
}  // namespace overtok
