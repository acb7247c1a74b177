#include "model/hf_config.h"

#include "core/io/files.h"
#include "model/hf_names.h"
#include "tests/support/temporary_directory.h"

namespace overtok {
namespace {

using ::overtok::testing::TemporaryDirectory;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ModelConfig Model() {
  ModelConfig model;
  model.vocab_size = 101;
  model.hidden_size = 48;
  model.intermediate_size = 56;
  model.num_hidden_layers = 3;
  model.num_attention_heads = 4;
  model.num_key_value_heads = 1;
  model.head_dim = 16;
  model.rope_theta = 1e6;
  model.rms_norm_eps = 1e-6;
  model.hybrid_norm = false;
  return model;
}

constexpr char kShape[] =
    R"("model_type": "qwen3", "vocab_size": 101, "hidden_size": 48, "intermediate_size": 56,
       "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 1,
       "head_dim": 16)";

std::vector<std::string> Compare(const std::string& text, const ModelConfig& model) {
  const TemporaryDirectory directory;
  const std::string path = directory.File("config.json");
  const absl::Status written = WriteFileAtomically(path, text);
  const auto differences = CompareWithHfConfig(path, model);
  if (!written.ok() || !differences.ok()) {
    return {std::string(differences.status().message())};
  }
  return *differences;
}

// The shape, then `more`.
std::vector<std::string> CompareWith(const std::string& more, const ModelConfig& model) {
  return Compare(absl::StrCat("{", kShape, more, "}"), model);
}

TEST(HfConfig, OlderAndNewerFilesThatFit) {
  EXPECT_THAT(CompareWith(R"(, "rope_theta": 1000000, "rms_norm_eps": 1e-06, "rope_scaling": null,
                              "attention_bias": false, "use_sliding_window": false)",
                          Model()),
              IsEmpty());
  EXPECT_THAT(CompareWith(R"(, "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
                     "rms_norm_eps": 0.000001, "tie_word_embeddings": false, "dtype": "bfloat16")",
                          Model()),
              IsEmpty());
  // The nested base goes before the other.
  EXPECT_THAT(CompareWith(R"(, "rope_theta": 5, "rope_parameters": {"rope_theta": 1e6},
                              "rms_norm_eps": 1e-06)",
                          Model()),
              IsEmpty());
}

TEST(HfConfig, EveryKeyThatDiffers) {
  EXPECT_THAT(
      Compare(R"({"model_type": "llama", "vocab_size": 128, "hidden_size": 48.0,
                  "num_hidden_layers": "3", "num_attention_heads": 8, "num_key_value_heads": 2,
                  "head_dim": null, "rope_theta": 10000.5, "rms_norm_eps": 1e-05,
                  "tie_word_embeddings": true, "attention_bias": true, "hidden_act": "gelu",
                  "use_sliding_window": true, "rope_scaling": {"type": "yarn", "factor": 4}})",
              Model()),
      ElementsAre("model_type in the file is \"llama\"; expected \"qwen3\"",
                  "model.vocab_size is 101, vocab_size in the file is 128",
                  "model.hidden_size is 48, hidden_size in the file is 48.0",
                  "model.intermediate_size is 56, intermediate_size in the file is not given",
                  "model.num_hidden_layers is 3, num_hidden_layers in the file is \"3\"",
                  "model.num_attention_heads is 4, num_attention_heads in the file is 8",
                  "model.num_key_value_heads is 1, num_key_value_heads in the file is 2",
                  "model.head_dim is 16, head_dim in the file is not given",
                  "rope_scaling.type in the file is \"yarn\"; only default exists here",
                  "model.rope_theta is 1000000.0, rope_theta in the file is 10000.5",
                  "model.rms_norm_eps is 1e-06, rms_norm_eps in the file is 1e-05",
                  "model.tie_word_embeddings is false, tie_word_embeddings in the file is true",
                  "attention_bias in the file is true; only false exists here",
                  "hidden_act in the file is \"gelu\"; only \"silu\" exists here",
                  "use_sliding_window in the file is true; only false exists here"));
}

TEST(HfConfig, WhatTheFileLeavesOut) {
  EXPECT_THAT(CompareWith(R"(, "rms_norm_eps": 1e-06)", Model()),
              ElementsAre("model.rope_theta is 1000000.0, rope_theta in the file is not given, "
                          "that is 10000"));
  ModelConfig tied = Model();
  tied.tie_word_embeddings = true;
  tied.rope_theta = 10000;
  EXPECT_THAT(CompareWith(R"(, "rms_norm_eps": 1e-06)", tied),
              ElementsAre("model.tie_word_embeddings is true, tie_word_embeddings in the file is "
                          "false (its default)"));
}

TEST(HfConfig, RefusesOtherFiles) {
  EXPECT_THAT(Compare("[]", Model()), ElementsAre(HasSubstr("is not a JSON object")));
  EXPECT_THAT(Compare("{", Model()), ElementsAre(HasSubstr("is not a JSON object")));
  EXPECT_THAT(
      CompareWith(R"(, "rope_parameters": 3, "rms_norm_eps": 1e-06, "rope_theta": 1e6)", Model()),
      ElementsAre(HasSubstr("rope_parameters in the file is 3; expected an object")));
}

TEST(HfNames, EveryParameterHasOneOfTheTwo) {
  ModelConfig model = Model();
  EXPECT_EQ(HfPlaces(model).size(), 3u * 11 + 3);
  EXPECT_THAT(WithoutHfPlace(model), IsEmpty());
  model.tie_word_embeddings = true;
  EXPECT_EQ(HfPlaces(model).size(), 3u * 11 + 2);
  model.hybrid_norm = true;
  model.ngram_embedding.emplace();
  model.second_token_head.emplace();
  model.ngram_head.emplace();
  EXPECT_EQ(HfPlaces(model).size(), 3u * 11 + 2);
  EXPECT_EQ(WithoutHfPlace(model).size(), 4u);
}

}  // namespace
}  // namespace overtok
