// Sections that may be null, the values that `auto` comes to in them, and the rules of the methods.
#include <fstream>

#include "tests/support/temporary_directory.h"
#include "tests/trainer/config/support.h"
#include "trainer/config/derived.h"

namespace overtok {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kSmallConfig;
using testing::LoadSmall;
using testing::TemporaryDirectory;

constexpr char kOneStage[] = "loss.sampled_softmax={stages: [{until: 0.5, candidates: 40}]}";

absl::StatusOr<LoadedConfig> LoadWith(const std::string& more) {
  return LoadConfigText(kSmallConfig + more, "f.yaml");
}

void Write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

TEST(OptionalSections, NullAndAbsentAreOffAndAMappingTurnsThemOn) {
  for (const auto& overrides :
       {std::vector<std::string>{}, {"model.ngram_embedding=null", "loss.sampled_softmax=null"}}) {
    const auto loaded = LoadSmall(overrides);
    OT_ASSERT_OK(loaded);
    EXPECT_FALSE(loaded->config.model.ngram_embedding.has_value());
    EXPECT_FALSE(loaded->config.model.second_token_head.has_value());
    EXPECT_FALSE(loaded->config.model.ngram_head.has_value());
    EXPECT_FALSE(loaded->config.loss.sampled_softmax.has_value());
    EXPECT_EQ(loaded->config.loss.block_sequences, 8);
  }
  const auto loaded =
      LoadSmall({"model.ngram_embedding={}", "model.second_token_head={}", "model.ngram_head={}",
                 "model.vocab_size=128256", "loss.sampled_softmax={}"});
  OT_ASSERT_OK(loaded);
  const ModelConfig& model = loaded->config.model;
  ASSERT_TRUE(model.ngram_embedding.has_value());
  EXPECT_THAT(model.ngram_embedding->orders, ElementsAre(2, 3));
  EXPECT_EQ(model.ngram_embedding->rows, 12800000);
  EXPECT_EQ(model.ngram_embedding->splits, 1);
  EXPECT_EQ(model.ngram_embedding->width, 10);  // floor(32 / 3)
  EXPECT_EQ(model.ngram_embedding->moduli, NgramEmbeddingConfig::Moduli::kPaper);
  EXPECT_EQ(model.ngram_embedding->row_dropout, 0);
  EXPECT_EQ(model.ngram_embedding->each_pass, NgramEmbeddingConfig::EachPass::kKeep);
  ASSERT_TRUE(model.second_token_head.has_value());
  EXPECT_EQ(model.second_token_head->weight, 0.1);
  ASSERT_TRUE(model.ngram_head.has_value());
  EXPECT_THAT(model.ngram_head->orders, ElementsAre(2));
  EXPECT_EQ(model.ngram_head->rows, 12800000);
  EXPECT_EQ(model.ngram_head->width, 10);
  EXPECT_EQ(model.ngram_head->weight, 0.1);
  EXPECT_EQ(model.ngram_head->correction, Correction::kNone);
  ASSERT_TRUE(loaded->config.loss.sampled_softmax.has_value());
  EXPECT_THAT(
      loaded->config.loss.sampled_softmax->stages,
      ElementsAre(SampledStage{0.57, 24576}, SampledStage{0.81, 36864}, SampledStage{0.93, 65536}));
  EXPECT_EQ(loaded->config.loss.sampled_softmax->negatives, Negatives::kSweep);
  EXPECT_TRUE(loaded->warnings.empty());
}

TEST(OptionalSections, NullRemovesWhatWasInherited) {
  TemporaryDirectory directory;
  Write(directory.File("on.yaml"), std::string(kSmallConfig) +
                                       "loss: {sampled_softmax: {stages: "
                                       "[{until: 0.5, candidates: 40}], "
                                       "correction: inclusion}}\n");
  Write(directory.File("off.yaml"), "base: on.yaml\nloss: {sampled_softmax: null}\n");
  Write(directory.File("again.yaml"),
        "base: off.yaml\nloss: {sampled_softmax: {stages: [{until: 0.25, candidates: 30}]}}\n");
  auto loaded = LoadConfig(directory.File("on.yaml"), {});
  OT_ASSERT_OK(loaded);
  EXPECT_TRUE(loaded->config.loss.sampled_softmax.has_value());
  loaded = LoadConfig(directory.File("off.yaml"), {});
  OT_ASSERT_OK(loaded);
  EXPECT_FALSE(loaded->config.loss.sampled_softmax.has_value());
  EXPECT_EQ(loaded->Where("loss.sampled_softmax"),
            directory.File("off.yaml") + ":2: loss.sampled_softmax");
  loaded = LoadConfig(directory.File("again.yaml"), {});
  OT_ASSERT_OK(loaded);
  EXPECT_EQ(loaded->config.loss.sampled_softmax->correction, Correction::kNone);
  EXPECT_EQ(loaded->config.loss.sampled_softmax->stages[0].candidates, 30);
}

TEST(OptionalSections, NamedMistakes) {
  OT_EXPECT_ERROR(LoadSmall({"model.ngram_embedding=3"}),
                  "command line: model.ngram_embedding: \"3\" is not valid; expected a mapping");
  OT_EXPECT_ERROR(LoadSmall({"model.second_token_head=true"}), "or null to switch it off");
  OT_EXPECT_ERROR(LoadSmall({"model.ngram_embeding={}"}), "did you mean model.ngram_embedding?");
  OT_EXPECT_ERROR(LoadSmall({"model.ngram_embedding={row: 5}"}),
                  "did you mean model.ngram_embedding.rows?");
}

TEST(Autos, WidthsAndSplits) {
  struct Case {
    int64_t hidden;
    const char* orders;
    int64_t splits, width;
  };
  // 3 * 256 = 768: halves of it round to the even neighbour.
  for (const Case& c :
       {Case{512, "[2, 3]", 1, 170}, Case{768, "[2, 3]", 1, 256}, Case{1024, "[2, 3]", 1, 341},
        Case{2048, "[2, 3]", 3, 227}, Case{1152, "[2, 3]", 2, 192}, Case{1920, "[2, 3]", 2, 320},
        Case{512, "[2]", 1, 256}, Case{1024, "[2]", 2, 256}, Case{512, "[3]", 1, 170}}) {
    const auto loaded =
        LoadSmall({absl::StrCat("model.hidden_size=", c.hidden),
                   absl::StrCat("model.ngram_embedding.orders=", c.orders), "model.ngram_head={}"});
    OT_ASSERT_OK(loaded);
    EXPECT_EQ(loaded->config.model.ngram_embedding->splits, c.splits) << c.hidden << c.orders;
    EXPECT_EQ(loaded->config.model.ngram_embedding->width, c.width) << c.hidden << c.orders;
    EXPECT_EQ(loaded->config.model.ngram_head->width, c.width) << c.hidden << c.orders;
  }
  auto loaded = LoadSmall({"model.hidden_size=2048", "model.ngram_head={}"});
  OT_ASSERT_OK(loaded);
  EXPECT_EQ(loaded->config.model.ngram_head->width, 227);
  loaded = LoadSmall({"model.ngram_head={}", "model.ngram_embedding={width: 7}"});
  OT_ASSERT_OK(loaded);
  EXPECT_EQ(loaded->config.model.ngram_head->width, 7);
}

TEST(Autos, BlocksDivideTheBatch) {
  const auto block = [](int64_t batch) {
    return LoadSmall({kOneStage, absl::StrCat("train.batch_sequences=", batch)})
        ->config.loss.block_sequences;
  };
  EXPECT_EQ(block(8), 8);
  EXPECT_EQ(block(32), 32);
  EXPECT_EQ(block(128), 32);
  EXPECT_EQ(block(48), 24);
  EXPECT_EQ(block(62), 31);
  EXPECT_EQ(block(37), 1);
}

TEST(Autos, TablesFollowTheOptimizer) {
  auto loaded = LoadSmall({"model.ngram_embedding={}", "optimizer.beta1=0.75"});
  OT_ASSERT_OK(loaded);
  EXPECT_EQ(loaded->config.optimizer.tables.beta1, 0.75);
  loaded = LoadSmall({"model.ngram_embedding={}", "optimizer.tables.beta1=0"});
  OT_ASSERT_OK(loaded);
  EXPECT_EQ(loaded->config.optimizer.tables.beta1, 0);
}

TEST(MethodRules, Stages) {
  const auto stages = [](const std::string& list) {
    return LoadSmall({"loss.sampled_softmax.stages=" + list});
  };
  OT_EXPECT_ERROR(stages("[{until: 0.5, candidates: 101}]"),
                  "command line: loss.sampled_softmax.stages: 101 candidates are more than the 100 "
                  "classes of model.vocab_size; give stages of your own");
  OT_EXPECT_ERROR(stages("[{until: 0.5, candidates: 101}]"),
                  "[{until: 0.57, candidates: 19}, {until: 0.81, candidates: 29}, {until: 0.93, "
                  "candidates: 51}]");
  OT_ASSERT_OK(stages("[{until: 0.5, candidates: 100}]"));
  OT_EXPECT_ERROR(stages("[]"), "expected at least one stage");
  OT_EXPECT_ERROR(stages("7"), "expected a list like");
  OT_EXPECT_ERROR(stages("[7]"), "expected a mapping like");
  OT_EXPECT_ERROR(stages("[{until: 0.5}]"), "a stage lacks candidates");
  OT_EXPECT_ERROR(stages("[{candidates: 5}]"), "a stage lacks until");
  OT_EXPECT_ERROR(stages("[{untill: 0.5, candidates: 5}]"), "did you mean until?");
  OT_EXPECT_ERROR(stages("[{until: 1.01, candidates: 5}]"),
                  "until: \"1.01\" is not valid; expected a number > 0 and <= 1");
  OT_EXPECT_ERROR(stages("[{until: 0, candidates: 5}]"), "expected a number > 0 and <= 1");
  OT_EXPECT_ERROR(stages("[{until: 0.5, candidates: 0}]"), "candidates: \"0\" is not valid");
  OT_EXPECT_ERROR(stages("[{until: 0.5, candidates: 5}, {until: 0.5, candidates: 9}]"),
                  "the stage until 0.5 follows the one until 0.5; expected ascending fractions");
  OT_EXPECT_ERROR(stages("[{until: 0.5, candidates: 5}, {until: 0.4, candidates: 9}]"),
                  "the stage until 0.4 follows the one until 0.5");
}

TEST(MethodRules, AStageUntilTheEndIsAWarning) {
  const auto loaded =
      LoadSmall({"loss.sampled_softmax.stages=[{until: 0.5, candidates: 40}, {until: 1.0, "
                 "candidates: 50}]"});
  OT_ASSERT_OK(loaded);
  ASSERT_EQ(loaded->warnings.size(), 1u);
  EXPECT_THAT(loaded->warnings[0], HasSubstr("command line: loss.sampled_softmax.stages: the last "
                                             "stage ends at 1, so that the run never trains the "
                                             "full softmax"));
  EXPECT_TRUE(LoadSmall({kOneStage})->warnings.empty());
}

TEST(MethodRules, Tables) {
  OT_EXPECT_ERROR(LoadSmall({"model.ngram_embedding.rows=1"}),
                  "model.ngram_embedding.rows: \"1\" is not valid; expected a whole number >= 2");
  OT_EXPECT_ERROR(LoadSmall({"model.ngram_embedding.rows=4294967296"}), "and <= 4294967295");
  OT_EXPECT_ERROR(LoadSmall({"model.ngram_embedding.rows=4294967292"}),
                  "4294967292 is too large, because 2 tables need up to 4 rows more");
  OT_ASSERT_OK(LoadSmall({"model.ngram_embedding.rows=4294967291"}));
  OT_EXPECT_ERROR(LoadSmall({"model.ngram_embedding={rows: 4294967000, moduli: prime}"}),
                  "2 tables of the next primes need up to 4400 rows more and rows are named by 32 "
                  "bits; expected at most 4294962895");
  OT_EXPECT_ERROR(LoadSmall({"model.ngram_head.rows=1"}), "expected a whole number >= 2");
  OT_EXPECT_ERROR(LoadSmall({"model.ngram_head={rows: 4294967292, orders: [2, 3]}"}), "too large");
  OT_EXPECT_ERROR(LoadSmall({"model.ngram_embedding.orders=[1, 2]"}),
                  "[1, 2] is not valid; expected [2, 3] | [2] | [3]");
  OT_EXPECT_ERROR(LoadSmall({"model.ngram_embedding.orders=[3, 2]"}), "[3, 2] is not valid");
  OT_EXPECT_ERROR(LoadSmall({"model.ngram_embedding.orders=[]"}), "[] is not valid");
  OT_EXPECT_ERROR(LoadSmall({"model.ngram_head.orders=[3]"}), "expected [2] | [2, 3]");
  OT_EXPECT_ERROR(LoadSmall({"model.ngram_embedding.width=0"}), "expected a whole number >= 1");
  OT_EXPECT_ERROR(LoadSmall({"model.ngram_embedding.splits=0"}), "expected a whole number >= 1");
  OT_EXPECT_ERROR(LoadSmall({"model.ngram_embedding.splits=11"}),
                  "default: model.ngram_embedding.width: auto comes to 0 for model.hidden_size 32");
  OT_EXPECT_ERROR(LoadSmall({"model={hidden_size: 2, head_dim: 2, ngram_head: {}}"}),
                  "model.ngram_head.width: auto comes to 0");
  OT_EXPECT_ERROR(LoadSmall({"model.ngram_embedding.row_dropout=1"}),
                  "expected a number >= 0 and < 1");
  OT_EXPECT_ERROR(LoadSmall({"model.ngram_embedding.each_pass=reset"}),
                  "expected keep | reinitialize | rehash");
  OT_EXPECT_ERROR(LoadSmall({"model.ngram_embedding={}", "optimizer.tables.untouched_decay=125"}),
                  "125 times the tables' rate 0.008 is not below 1");
}

TEST(MethodRules, HeadsOfNoWeight) {
  for (const char* key : {"model.second_token_head.weight", "model.ngram_head.weight"}) {
    OT_EXPECT_ERROR(LoadSmall({absl::StrCat(key, "=0")}),
                    absl::StrCat("command line: ", key,
                                 ": \"0\" is not valid; expected a number > 0; to train without "
                                 "this head, write null in the place of its section"));
  }
}

TEST(MethodRules, LossesThatDoNotGoTogether) {
  OT_EXPECT_ERROR(LoadSmall({"loss.focal_gamma=1", kOneStage}),
                  "loss.focal_gamma: 1 does not go with loss.sampled_softmax");
  OT_EXPECT_ERROR(LoadSmall({"loss.focal_gamma=0.5", "model.ngram_head={}"}),
                  "loss.focal_gamma: 0.5 does not go with model.ngram_head");
  OT_ASSERT_OK(LoadSmall({"loss.focal_gamma=1", "model.second_token_head={}"}));
  OT_EXPECT_ERROR(LoadSmall({"loss.z_loss=1e-4", kOneStage}),
                  "loss.z_loss: 1e-04 does not go with loss.sampled_softmax.correction: none");
  OT_ASSERT_OK(
      LoadSmall({"loss.z_loss=1e-4", kOneStage, "loss.sampled_softmax.correction=inclusion"}));
  OT_EXPECT_ERROR(LoadSmall({kOneStage, "loss.sampled_softmax.block_sequences=3"}),
                  "command line: loss.sampled_softmax.block_sequences: 3 does not divide "
                  "train.batch_sequences 8; choose a divisor");
}

TEST(MethodRules, OptionsWithoutEffect) {
  for (const char* option : {"update: sgd", "second_moment: row", "beta1: 0", "storage: bf16",
                             "lr_scale: 2", "untouched_decay: 1"}) {
    const std::string key = std::string(option).substr(0, std::string(option).find(':'));
    OT_EXPECT_ERROR(LoadSmall({absl::StrCat("optimizer.tables={", option, "}")}),
                    absl::StrCat("command line: optimizer.tables.", key,
                                 ": has no effect with model.ngram_embedding: null (default), "
                                 "because the model has no hashed tables"));
    OT_ASSERT_OK(
        LoadSmall({absl::StrCat("optimizer.tables={", option, "}"), "model.ngram_embedding={}"}));
    OT_ASSERT_OK(
        LoadSmall({absl::StrCat("optimizer.tables={", option, "}"), "model.ngram_head={}"}));
  }
  OT_EXPECT_ERROR(LoadSmall({"optimizer.tables.freeze_step=3", "model.ngram_head={}"}),
                  "has no effect with model.ngram_embedding: null (default), because only input "
                  "tables freeze");
  OT_EXPECT_ERROR(LoadSmall({"optimizer.tables.freeze_after_passes=1"}),
                  "only input tables freeze");
  OT_EXPECT_ERROR(
      LoadSmall({"optimizer.tables={update: sgd, second_moment: row}", "model.ngram_embedding={}"}),
      "optimizer.tables.second_moment: has no effect with optimizer.tables.update: sgd");
  OT_EXPECT_ERROR(
      LoadSmall({"optimizer.tables={update: adagrad, beta1: 0.5}", "model.ngram_embedding={}"}),
      "optimizer.tables.beta1: has no effect with optimizer.tables.update: adagrad");
  OT_EXPECT_ERROR(LoadSmall({"eval={paloma: x, inclusion_adjusted: true}"}),
                  "eval.inclusion_adjusted: has no effect with loss.sampled_softmax: null");
  OT_EXPECT_ERROR(LoadSmall({kOneStage, "eval.inclusion_adjusted=true"}), "nothing to evaluate");
  OT_EXPECT_ERROR(LoadSmall({kOneStage, "loss.sampled_softmax.correction=inclusion",
                             "eval={paloma: x, inclusion_adjusted: true}"}),
                  "eval.inclusion_adjusted: has no effect with loss.sampled_softmax.correction");
  OT_EXPECT_ERROR(LoadSmall({"eval.pass_offsets=[1]"}), "nothing to evaluate");
  OT_EXPECT_ERROR(LoadWith("eval: {inclusion_adjusted: true, paloma: x}\n"),
                  "f.yaml:15: eval.inclusion_adjusted: has no effect");
  // Another section's keys beside the null that disables them.
  const std::string text(kSmallConfig);
  const size_t at = text.find("data:");
  OT_EXPECT_ERROR(LoadConfigText("loss: {sampled_softmax: null}\n" + text.substr(0, at) +
                                     "  tables: {lr_scale: 2}\n" + text.substr(at),
                                 "f.yaml"),
                  "f.yaml:11: optimizer.tables.lr_scale: has no effect");
}

TEST(MethodRules, InheritedTableOptionsAreSilentlyInactive) {
  TemporaryDirectory directory;
  Write(directory.File("tables.yaml"),
        "model: {ngram_embedding: {}}\noptimizer: {tables: {lr_scale: 3, freeze_step: 4, beta1: "
        "0.5}}\n");
  Write(directory.File("small.yaml"), kSmallConfig);
  Write(directory.File("off.yaml"),
        "base: [small.yaml, tables.yaml]\nmodel: {ngram_embedding: null}\n");
  const auto loaded = LoadConfig(directory.File("off.yaml"), {});
  OT_ASSERT_OK(loaded);
  EXPECT_EQ(loaded->config.optimizer.tables.lr_scale, 1);
  EXPECT_EQ(loaded->config.optimizer.tables.freeze_step, 0);
  EXPECT_EQ(loaded->config.optimizer.tables.beta1, 0.9);  // what auto comes to
}

TEST(PassOffsets, AnyWholeNumbers) {
  const auto loaded = LoadSmall({"eval={paloma: x, pass_offsets: [-50, 0, 1_000]}"});
  OT_ASSERT_OK(loaded);
  EXPECT_THAT(loaded->config.eval.pass_offsets, ElementsAre(-50, 0, 1000));
  OT_EXPECT_ERROR(LoadSmall({"eval={paloma: x, pass_offsets: 3}"}),
                  "expected a list of whole numbers");
  OT_EXPECT_ERROR(LoadSmall({"eval={paloma: x, pass_offsets: [1.5]}"}), "\"1.5\" is not valid");
}

TEST(Arms, LieOverTheFileAndUnderTheCommandLine) {
  TemporaryDirectory directory;
  Write(directory.File("small.yaml"), std::string(kSmallConfig) + "  seed: 1\n");
  Write(directory.File("parent.yaml"), "model: {second_token_head: {weight: 0.5}}\n");
  Write(directory.File("arm.yaml"), "base: parent.yaml\ntrain: {seed: 2, tokens: 1280}\n");
  Write(directory.File("more.yaml"), "model: {second_token_head: {weight: 0.25}}\n");
  auto loaded = LoadConfig(directory.File("small.yaml"), {}, {directory.File("arm.yaml")});
  OT_ASSERT_OK(loaded);
  EXPECT_EQ(loaded->config.train.seed, 2u);
  EXPECT_EQ(loaded->config.train.steps, 10);  // tokens of the arm replace steps of the file
  EXPECT_EQ(loaded->config.model.second_token_head->weight, 0.5);
  loaded = LoadConfig(directory.File("small.yaml"), {"train.seed=3"},
                      {directory.File("arm.yaml"), directory.File("more.yaml")});
  OT_ASSERT_OK(loaded);
  EXPECT_EQ(loaded->config.train.seed, 3u);
  EXPECT_EQ(loaded->config.model.second_token_head->weight, 0.25);
  OT_EXPECT_ERROR(LoadConfig(directory.File("small.yaml"), {}, {directory.File("none.yaml")}),
                  "none.yaml");
}

}  // namespace
}  // namespace overtok
