#include "data/text/json_line.h"

#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"

namespace overtok {
namespace {

TEST(JsonLineTest, FindsTheField) {
  JsonLineParser parser;
  EXPECT_EQ(
      *parser.Text(R"({"id": 3, "text": "a\nb \u00e9 \ud83d\ude00", "m": {"text": 1}})", "text"),
      "a\nb \xC3\xA9 \xF0\x9F\x98\x80");
  EXPECT_EQ(*parser.Text(R"({"content": ""})", "content"), "");
  EXPECT_EQ(parser.Text("{\"text\": \"a\\u0000b\"}", "text")->size(), 3u);
}

// Lines of several megabytes, and short ones after them.
TEST(JsonLineTest, LongLines) {
  JsonLineParser parser;
  const std::string text(5'000'000, 'z');
  EXPECT_EQ(*parser.Text("{\"text\": \"" + text + "\"}", "text"), text);
  EXPECT_EQ(*parser.Text(R"({"text": "s"})", "text"), "s");
}

TEST(JsonLineTest, MistakesAreNamed) {
  JsonLineParser parser;
  OT_EXPECT_ERROR(parser.Text(R"({"text": "a)", "text"), "not valid JSON");
  OT_EXPECT_ERROR(parser.Text(R"(["a"])", "text"), "not a JSON object");
  OT_EXPECT_ERROR(parser.Text(R"({"id": 1, "content": "x"})", "text"),
                  "no field \"text\"; the object has: id, content");
  OT_EXPECT_ERROR(parser.Text(R"({"text": null})", "text"), "\"text\" is not a string");
  OT_EXPECT_ERROR(parser.Text(R"({"text": "\ud83d alone"})", "text"), "a lone surrogate escape");
  OT_EXPECT_ERROR(parser.Text("{\"text\": \"\xff\xfe\"}", "text"), "not valid JSON");
  EXPECT_EQ(*parser.Text(R"({"text": "still works"})", "text"), "still works");
}

}  // namespace
}  // namespace overtok
