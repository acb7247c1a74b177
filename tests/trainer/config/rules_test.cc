// Rules between keys.
#include <fstream>

#include "tests/support/temporary_directory.h"
#include "tests/trainer/config/support.h"
#include "trainer/config/schema.h"

namespace overtok {
namespace {

using testing::kSmallConfig;
using testing::LoadSmall;
using testing::TemporaryDirectory;

absl::StatusOr<LoadedConfig> LoadWith(const std::string& more) {
  return LoadConfigText(kSmallConfig + more, "f.yaml");
}

TEST(Rules, Shapes) {
  OT_EXPECT_ERROR(
      LoadSmall({"model.num_key_value_heads=3"}),
      "command line: model.num_key_value_heads: 3 does not divide num_attention_heads 4");
  OT_EXPECT_ERROR(LoadSmall({"model.head_dim=7"}), "7 is not valid; expected an even number");
  OT_EXPECT_ERROR(LoadSmall({"model.hidden_size=36"}), "expected an even number");  // auto = 9
  OT_EXPECT_ERROR(LoadSmall({"model.hidden_size=33"}), "not whole; give head_dim");
  OT_ASSERT_OK(LoadSmall({"model.hidden_size=33", "model.head_dim=6"}));
  OT_EXPECT_ERROR(LoadSmall({"train.micro_batch_sequences=3"}),
                  "3 does not divide train.batch_sequences 8");
  OT_EXPECT_ERROR(LoadSmall({"data.sequence_length=1"}), "expected a whole number >= 2");
}

TEST(Rules, ExactlyOneHorizon) {
  OT_EXPECT_ERROR(LoadConfigText(std::string(kSmallConfig) + "  tokens: 1B\n", "f.yaml"),
                  "f.yaml:13: train.steps and f.yaml:15: train.tokens: give exactly one of");
  OT_EXPECT_ERROR(LoadSmall({"train.tokens=1B", "train.passes_over_data=2"}),
                  "give exactly one of");
  OT_EXPECT_ERROR(LoadSmall({"train.steps=null"}), "the length of the run is missing");
  const auto loaded = LoadSmall({"train.tokens=1280"});  // replaces the file's steps
  OT_ASSERT_OK(loaded);
  EXPECT_EQ(loaded->config.train.steps, 10);
}

TEST(Rules, AtMostOneOfPassesAndUniqueTokens) {
  OT_EXPECT_ERROR(LoadSmall({"data.passes=2", "data.unique_tokens=1M"}), "give at most one of");
  OT_ASSERT_OK(LoadSmall({"data.passes=2", "data.unique_tokens=null"}));
  OT_EXPECT_ERROR(LoadSmall({"data.passes=0.5"}), "expected a number >= 1");
}

TEST(Rules, OptionsWithoutEffectInTheSameFile) {
  OT_EXPECT_ERROR(LoadWith("eval: {every_steps: 5, paloma: null}\n"),
                  "f.yaml:15: eval.every_steps: has no effect with eval.paloma: null");
  OT_ASSERT_OK(LoadWith("eval: {every_steps: 5, paloma: corpus}\n"));
  for (const char* option : {"a: 3", "b: 4", "block: 7"}) {
    const std::string text = std::string(kSmallConfig);
    const size_t at = text.find("train:");
    OT_EXPECT_ERROR(LoadConfigText(text.substr(0, at) + "  order: {type: feistel, " + option +
                                       "}\n" + text.substr(at),
                                   "f.yaml"),
                    "has no effect with data.order.type: feistel (f.yaml:12)");
  }
}

TEST(Rules, EveryRuleNamesKeysThatExist) {
  for (const InactiveRule& rule : ConfigInactiveRules()) {
    EXPECT_NE(FindKey(rule.option), nullptr) << rule.option;
    for (const std::string& key : rule.disabled_by) {
      EXPECT_TRUE(FindKey(key) != nullptr || FindOptionalSection(key) != nullptr) << key;
    }
  }
  for (const ExclusiveKeys& group : ConfigExclusiveKeys()) {
    for (const std::string& key : group.keys) EXPECT_NE(FindKey(key), nullptr) << key;
  }
}

TEST(Rules, OptionsWithoutEffectOnTheCommandLine) {
  OT_EXPECT_ERROR(LoadSmall({"optimizer.schedule={type: cosine, decay: 0.5}"}),
                  "command line: optimizer.schedule.decay: has no effect");
  OT_EXPECT_ERROR(LoadSmall({"eval.every_steps=5"}), "there is nothing to evaluate");
  OT_EXPECT_ERROR(LoadWith("eval: {every_steps: 5}\n"),
                  "f.yaml:15: eval.every_steps: has no effect with eval.paloma: null (default)");
  OT_EXPECT_ERROR(LoadSmall({"data.order={type: sequential, seed: 3}"}), "draws nothing");
  OT_EXPECT_ERROR(LoadSmall({"optimizer.schedule={decay: 0, min_lr_ratio: 0.1}"}), "never falls");
  // null is not an option that could have an effect.
  OT_ASSERT_OK(LoadSmall({"data.order={type: feistel, a: null}"}));
}

TEST(Rules, InitialWeights) {
  auto loaded = LoadSmall();
  OT_ASSERT_OK(loaded);
  EXPECT_FALSE(loaded->config.train.initial_weights.has_value());
  OT_EXPECT_ERROR(LoadSmall({"train.new_parameters=draw"}),
                  "train.new_parameters: has no effect with train.initial_weights: null");
  loaded = LoadSmall({"train.initial_weights=base", "train.new_parameters=draw"});
  OT_ASSERT_OK(loaded);
  EXPECT_EQ(loaded->config.train.initial_weights, "base");
  EXPECT_EQ(loaded->config.train.new_parameters, NewParameters::kDraw);
  loaded = LoadConfigText(ResolvedYaml(loaded->config), "resolved.yaml");
  OT_ASSERT_OK(loaded);
  EXPECT_EQ(loaded->config.train.initial_weights, "base");
  EXPECT_EQ(loaded->config.train.new_parameters, NewParameters::kDraw);
}

TEST(Rules, InheritedOptionsAreSilentlyInactive) {
  TemporaryDirectory directory;
  std::ofstream(directory.File("small.yaml"))
      << kSmallConfig << "eval: {paloma: corpus, every_steps: 7}\n";
  std::ofstream(directory.File("linear.yaml"))
      << "base: small.yaml\noptimizer: {schedule: {type: linear, decay: 0.5}}\n";
  std::ofstream(directory.File("cosine.yaml"))
      << "base: linear.yaml\noptimizer: {schedule: {type: cosine}}\n";
  auto loaded = LoadConfig(directory.File("cosine.yaml"), {});
  OT_ASSERT_OK(loaded);
  EXPECT_EQ(loaded->config.optimizer.schedule.decay, 0.8);  // back to what it would be unset
  loaded = LoadConfig(directory.File("linear.yaml"), {"optimizer.schedule.type=cosine"});
  OT_ASSERT_OK(loaded);
  loaded = LoadConfig(directory.File("small.yaml"), {"eval.paloma=null"});
  OT_ASSERT_OK(loaded);
  std::ofstream(directory.File("often.yaml"))
      << kSmallConfig << "eval: {every_steps: 7, paloma: x}\n";
  std::ofstream(directory.File("never.yaml")) << "base: often.yaml\neval: {paloma: null}\n";
  OT_ASSERT_OK(LoadConfig(directory.File("never.yaml"), {}));
  // Typed on the command line it is a mistake, wherever the schedule was chosen.
  OT_EXPECT_ERROR(LoadConfig(directory.File("cosine.yaml"), {"optimizer.schedule.decay=0.4"}),
                  "has no effect with optimizer.schedule.type: cosine");
}

}  // namespace
}  // namespace overtok
