// tokenizer.json: both merge spellings, the flags that change ids, and errors that name what is not
// supported.
#include "data/tokenizer/tokenizer_json.h"

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/io/files.h"
#include "tests/data/tokenizer/sample.h"
#include "tests/support/temporary_directory.h"

namespace overtok {
namespace {

using ::overtok::testing::Ids;
using ::overtok::testing::MakeTokenizer;
using ::overtok::testing::TemporaryDirectory;
using ::overtok::testing::TrainedDefinition;
using Json = nlohmann::json;

Json TrainedJson() {
  auto text = FormatTokenizerJson(TrainedDefinition(400));
  EXPECT_TRUE(text.ok()) << text.status();
  return Json::parse(*text);
}

absl::StatusOr<BpeDefinition> Parse(const Json& json) {
  return ParseTokenizerJson("t.json", json.dump());
}

TEST(TokenizerJson, RoundTripKeepsTheMapping) {
  const BpeDefinition definition = TrainedDefinition(400);
  auto text = FormatTokenizerJson(definition);
  OT_ASSERT_OK(text);
  auto again = ParseTokenizerJson("t.json", *text);
  OT_ASSERT_OK(again);
  EXPECT_EQ(again->tokens, definition.tokens);
  EXPECT_EQ(HashDefinition(*again), HashDefinition(definition));
  EXPECT_EQ(*FormatTokenizerJson(*again), *text);
}

TEST(TokenizerJson, BothMergeSpellingsMeanTheSame) {
  Json json = TrainedJson();
  const std::string hash = HashDefinition(*Parse(json));
  for (Json& merge : json["model"]["merges"]) {
    const std::string pair = merge;
    const size_t space = pair.find(' ');
    merge = {pair.substr(0, space), pair.substr(space + 1)};
  }
  auto parsed = Parse(json);
  OT_ASSERT_OK(parsed);
  EXPECT_EQ(HashDefinition(*parsed), hash);
  json["model"]["merges"][3] = "a b c";
  OT_EXPECT_ERROR(Parse(json), "model.merges[3]");
  json["model"]["merges"][3] = {"a", "\u0120zzzz"};
  OT_EXPECT_ERROR(Parse(json), "not in model.vocab");
}

TEST(TokenizerJson, ByteLevelAloneIsGpt2s) {
  Json json = TrainedJson();
  json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", true}};
  auto spaced = Parse(json);
  OT_ASSERT_OK(spaced);
  EXPECT_TRUE(spaced->pre_tokenizer.gpt2_split);
  json["pre_tokenizer"]["add_prefix_space"] = false;
  auto plain = Parse(json);
  OT_ASSERT_OK(plain);
  const auto a = MakeTokenizer(*spaced), b = MakeTokenizer(*plain);
  EXPECT_EQ(Ids(*a, "the river"), Ids(*b, " the river"));
  EXPECT_EQ(Ids(*a, " the river"), Ids(*b, " the river"));
  EXPECT_NE(Ids(*b, "the river"), Ids(*b, " the river"));
  EXPECT_TRUE(Ids(*a, "").empty());
}

TEST(TokenizerJson, NfcComposesBeforeSplitting) {
  Json json = TrainedJson();
  const auto plain = MakeTokenizer(*Parse(json));
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}}}};
  const auto nfc = MakeTokenizer(*Parse(json));
  EXPECT_EQ(Ids(*nfc, "cafe\u0301"), Ids(*plain, "caf\u00e9"));
  EXPECT_NE(Ids(*plain, "cafe\u0301"), Ids(*plain, "caf\u00e9"));
  EXPECT_NE(nfc->hash(), plain->hash());
}

// GPT-2's file lists its special token in the vocabulary as well.
TEST(TokenizerJson, ASpecialTokenOfTheVocabularyIsNotReachedByText) {
  Json json = TrainedJson();
  json["model"]["vocab"]["<|end_of_text|>"] = 399;
  json["model"]["ignore_merges"] = true;
  // The whole text is one piece, so that it would be found as a whole.
  json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "[<|a-z_>]+";
  auto parsed = Parse(json);
  OT_ASSERT_OK(parsed);
  const auto tokenizer = MakeTokenizer(*parsed);
  EXPECT_EQ(tokenizer->vocab_size(), 400);
  for (uint32_t id : Ids(*tokenizer, "<|end_of_text|>")) EXPECT_NE(id, 399u);
  EXPECT_EQ(Ids(*tokenizer, "<|end_of_text|>", true), std::vector<uint32_t>{399});
  json["model"]["vocab"]["<|end_of_text|>"] = 398;
  OT_EXPECT_ERROR(Parse(json), "model.vocab gives it the id 398");
}

TEST(TokenizerJson, WhatIsNotSupportedIsNamed) {
  struct Case {
    std::function<void(Json&)> change;
    const char* expected;
  };
  const std::vector<Case> cases = {
      {[](Json& j) { j["model"]["type"] = "Unigram"; }, "model.type"},
      {[](Json& j) { j["model"]["dropout"] = 0.1; }, "model.dropout"},
      {[](Json& j) { j["model"]["unk_token"] = "<unk>"; }, "model.unk_token"},
      {[](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, "model.end_of_word_suffix"},
      {[](Json& j) { j["model"]["continuing_subword_prefix"] = "##"; },
       "model.continuing_subword_prefix"},
      {[](Json& j) { j["model"]["byte_fallback"] = true; }, "model.byte_fallback"},
      {[](Json& j) { j["model"]["ignore_merges"] = 1; }, "model.ignore_merges"},
      {[](Json& j) {
         j["normalizer"] = {{"type", "Lowercase"}};
       },
       "normalizer"},
      {[](Json& j) {
         j["normalizer"] = {{"type", "NFKC"}};
       },
       "NFKC"},
      {[](Json& j) { j["pre_tokenizer"] = nullptr; }, "pre_tokenizer"},
      {[](Json& j) {
         j["pre_tokenizer"] = {{"type", "Whitespace"}};
       },
       "Whitespace"},
      {[](Json& j) { j["pre_tokenizer"]["pretokenizers"].erase(1); }, "pre_tokenizer"},
      {[](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; }, "behavior"},
      {[](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\s+$"; }, "$"},
      {[](Json& j) {
         j["decoder"] = {{"type", "WordPiece"}};
       },
       "decoder"},
      {[](Json& j) {
         j["truncation"] = {{"max_length", 8}};
       },
       "truncation"},
      {[](Json& j) {
         j["padding"] = {{"strategy", "x"}};
       },
       "padding"},
      {[](Json& j) { j["model"].erase("vocab"); }, "model.vocab"},
      {[](Json& j) { j["model"]["merges"] = "a b"; }, "model.merges"},
      {[](Json& j) { j["model"]["vocab"]["a"] = -1; }, "the id of token"},
      {[](Json& j) { j["model"]["vocab"]["a"] = 5000000000; }, "the id of token"},
      {[](Json& j) { j["model"]["vocab"]["a"] = j["model"]["vocab"]["b"]; }, "twice"},
      {[](Json& j) {
         j["model"]["merges"] = Json::array();
         j["model"]["vocab"].erase("Q");
       },
       "no token for the byte 0x51"},
      {[](Json& j) { j["added_tokens"][0]["id"] = 65; }, "belongs to another token"},
      {[](Json& j) { j["added_tokens"][1]["id"] = j["added_tokens"][0]["id"]; }, "share the id"},
      {[](Json& j) { j["added_tokens"][0].erase("id"); }, "without content and id"},
      {[](Json& j) { j.erase("model"); }, "model is missing"}};
  const Json good = TrainedJson();
  OT_ASSERT_OK(Parse(good));
  for (const Case& c : cases) {
    Json json = good;
    c.change(json);
    OT_EXPECT_ERROR(Parse(json), c.expected);
    OT_EXPECT_ERROR(Parse(json), "t.json");
  }
}

TEST(TokenizerJson, BrokenJsonIsAnErrorWithItsPlace) {
  OT_EXPECT_ERROR(ParseTokenizerJson("t.json", "{\"model\": {"), "t.json: not readable as JSON");
  OT_EXPECT_ERROR(ParseTokenizerJson("t.json", "{\"model\": \"\\ud800\"}"), "not readable as JSON");
  OT_EXPECT_ERROR(ParseTokenizerJson("t.json", "[1]"), "not a JSON object");
}

TEST(LoadTokenizer, TellsFilesApartByContent) {
  const TemporaryDirectory directory;
  const std::string path = directory.File("bytes");  // a misleading name
  OT_ASSERT_OK(WriteFileAtomically(path, TrainedJson().dump()));
  auto tokenizer = LoadTokenizer(path, {});
  OT_ASSERT_OK(tokenizer);
  EXPECT_EQ((*tokenizer)->vocab_size(), 400);
  EXPECT_EQ((*tokenizer)->bos(), 398u);
  EXPECT_EQ((*tokenizer)->eos(), 399u);
  TokenizerOptions options;
  options.pattern = "gpt2";
  OT_EXPECT_ERROR(LoadTokenizer(path, options), "leave out --pattern");
  OT_ASSERT_OK(WriteFileAtomically(path, "hello world, this is text\n"));
  OT_EXPECT_ERROR(LoadTokenizer(path, {}), "neither a tokenizer.json");
  OT_ASSERT_OK(WriteFileAtomically(path, "\n"));
  OT_EXPECT_ERROR(LoadTokenizer(path, {}), "is empty");
  OT_EXPECT_ERROR(LoadTokenizer(directory.File("none"), {}), "none");
}

TEST(LoadTokenizer, BosAndEosCanBeNamed) {
  const TemporaryDirectory directory;
  const std::string path = directory.File("t.json");
  Json json = TrainedJson();
  json["added_tokens"][0]["content"] = "<start>";
  OT_ASSERT_OK(WriteFileAtomically(path, json.dump()));
  TokenizerOptions options;
  auto tokenizer = LoadTokenizer(path, options);
  OT_ASSERT_OK(tokenizer);
  EXPECT_FALSE((*tokenizer)->bos().has_value());
  options.bos = "<start>";
  options.eos = "<start>";
  tokenizer = LoadTokenizer(path, options);
  OT_ASSERT_OK(tokenizer);
  EXPECT_EQ((*tokenizer)->bos(), 398u);
  EXPECT_EQ((*tokenizer)->eos(), 398u);
  options.eos = "<stop>";
  OT_EXPECT_ERROR(LoadTokenizer(path, options), "<start>, <|end_of_text|>");
}

}  // namespace
}  // namespace overtok
