// Evaluation against the training step's own loss, its invariances, and the mistakes of users.
#include "trainer/evaluator.h"

#include <cmath>
#include <fstream>
#include <numbers>

#include "core/comm/mesh.h"
#include "core/io/files.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/tiny_run.h"
#include "trainer/evaluate.h"
#include "trainer/train_loop.h"
#include "trainer/train_step.h"
#include "trainer/training_data.h"

namespace overtok {
namespace {

using testing::kTinyWindow;
using testing::MakeTinyCorpus;
using testing::TemporaryDirectory;
using testing::TinyConfig;
using testing::TinyIdentity;
using testing::WriteTinySubset;

bool Never() { return false; }

// Sums of products in f32 in another order: relative 1e-6 of a loss of 4 to 5.
constexpr double kRounding = 1e-5;

class EvaluatorTest : public ::testing::Test {
 protected:
  void SetUp() override { OT_ASSERT_OK(MakeTinyCorpus(root())); }
  const std::string& root() const { return directory_.path(); }

  absl::StatusOr<std::unique_ptr<EvaluationData>> Open(const std::vector<std::string>& overrides) {
    OT_ASSIGN_OR_RETURN(const LoadedConfig loaded, TinyConfig(root(), "run", overrides));
    return EvaluationData::Open(loaded.config, identity_);
  }
  // Scores freshly initialised weights, `passes` times; the last scores are returned.
  absl::StatusOr<EvaluationScores> Scores(const std::vector<std::string>& overrides,
                                          int passes = 1) {
    OT_ASSIGN_OR_RETURN(const LoadedConfig loaded, TinyConfig(root(), "run", overrides));
    OT_ASSIGN_OR_RETURN(const std::unique_ptr<EvaluationData> data,
                        EvaluationData::Open(loaded.config, identity_));
    Memory memory(Memory::Mode::kReal);
    const Mesh mesh;
    TrainStep train(loaded.config, &mesh, &memory);
    Evaluator evaluator(loaded.config, train.model(), &train.parameters(), &mesh, &memory);
    train.Commit();
    train.Initialize();
    absl::StatusOr<EvaluationScores> scores;
    for (int i = 0; i < passes; ++i) scores = evaluator.Run(train.context(), *data, {}, Never);
    return scores;
  }

  TemporaryDirectory directory_;
  ShardIdentity identity_ = TinyIdentity();
};

// Three windows of the corpus as a held-out set: the mean loss is the one that a training step
// differentiates.
TEST_F(EvaluatorTest, EqualsTheLossOfTheTrainingStep) {
  OT_ASSERT_OK(RemoveTree(root() + "/held_out"));
  OT_ASSERT_OK(CreateDirectories(root() + "/held_out/same"));
  OT_ASSERT_OK(RenamePath(root() + "/train", root() + "/held_out/same/val"));
  const std::vector<std::string> overrides = {
      "data.train=[" + root() + "/held_out/same/val/*.h5]", "data.order={type: sequential}",
      "train.batch_sequences=10", "train.micro_batch_sequences=5"};
  const absl::StatusOr<EvaluationScores> scores = Scores(overrides);
  OT_ASSERT_OK(scores);
  const SubsetScore& score = scores->collections.at(0).subsets.at(0);
  EXPECT_EQ(score.windows, 10);
  EXPECT_EQ(score.weight, 10 * (kTinyWindow - 1));

  LoadedConfig loaded = TinyConfig(root(), "run", overrides).value();
  absl::StatusOr<TrainingData> data = OpenTrainingData(&loaded);
  OT_ASSERT_OK(data);
  Batch batch;
  OT_ASSERT_OK(FillBatch(*data->corpus, data->order, data->loader, 0, &batch));
  Memory memory(Memory::Mode::kReal);
  const Mesh mesh;
  TrainStep train(loaded.config, &mesh, &memory);
  train.Commit();
  train.Initialize();
  const absl::StatusOr<StepResult> step = train.Gradients(batch, 0);
  OT_ASSERT_OK(step);
  EXPECT_TRUE(std::abs(step->loss_main - score.loss()) <= kRounding)
      << step->loss_main << " against " << score.loss();
}

// cases.md 80.
TEST_F(EvaluatorTest, DoesNotDependOnTheMicroBatch) {
  for (const char* tail : {"eval.tail=drop", "eval.tail=keep"}) {
    const absl::StatusOr<EvaluationScores> one = Scores({"train.micro_batch_sequences=1", tail});
    const absl::StatusOr<EvaluationScores> three = Scores({"train.micro_batch_sequences=3", tail});
    OT_ASSERT_OK(one);
    OT_ASSERT_OK(three);
    for (size_t i = 0; i < 2; ++i) {
      const SubsetScore& a = one->collections.at(0).subsets.at(i);
      const SubsetScore& b = three->collections.at(0).subsets.at(i);
      EXPECT_EQ(a.weight, b.weight);
      EXPECT_TRUE(std::abs(a.loss() - b.loss()) <= kRounding) << a.name;
    }
  }
}

// cases.md 86.
TEST_F(EvaluatorTest, TwoPassesHaveTheSameBits) {
  const absl::StatusOr<EvaluationScores> once = Scores({}, 1), twice = Scores({}, 2);
  OT_ASSERT_OK(once);
  OT_ASSERT_OK(twice);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(once->collections.at(0).subsets.at(i).loss_sum,
              twice->collections.at(0).subsets.at(i).loss_sum);
  }
}

TEST_F(EvaluatorTest, TheTailIsScoredOnRequest) {
  const absl::StatusOr<EvaluationScores> drop = Scores({}), keep = Scores({"eval.tail=keep"});
  OT_ASSERT_OK(drop);
  OT_ASSERT_OK(keep);
  const SubsetScore& dropped = drop->collections.at(0).subsets.at(0);
  const SubsetScore& kept = keep->collections.at(0).subsets.at(0);
  EXPECT_EQ(dropped.name, "a");
  EXPECT_EQ(dropped.windows, 3);
  EXPECT_EQ(dropped.weight, 3 * 15);
  EXPECT_EQ(kept.windows, 4);
  EXPECT_EQ(kept.weight, 3 * 15 + 6);  // each target once, seven ids have six
  EXPECT_GT(kept.loss_sum, dropped.loss_sum);
}

TEST_F(EvaluatorTest, ShortAndEmptySubsetsAreLeftOutAndNamed) {
  OT_ASSERT_OK(WriteTinySubset(root(), "short", 13, 15));
  OT_ASSERT_OK(CreateDirectories(root() + "/held_out/empty/val"));
  const absl::StatusOr<std::unique_ptr<EvaluationData>> data = Open({});
  OT_ASSERT_OK(data);
  const EvaluationCollection& collection = (*data)->collections().at(0);
  EXPECT_EQ(collection.subsets.size(), 2u);
  EXPECT_THAT(collection.left_out, ::testing::UnorderedElementsAre("short", "empty"));
  const absl::StatusOr<std::unique_ptr<EvaluationData>> kept = Open({"eval.tail=keep"});
  OT_ASSERT_OK(kept);
  EXPECT_THAT((*kept)->collections().at(0).left_out, ::testing::ElementsAre("empty"));
}

TEST_F(EvaluatorTest, PalomaNeedsAllOfItsSubsets) {
  const std::string paloma = root() + "/paloma";
  OT_ASSERT_OK(RenamePath(root() + "/held_out", paloma));
  const std::vector<std::string> overrides = {"eval.held_out=null", "eval.paloma=" + paloma};
  OT_EXPECT_ERROR(Open(overrides), "has a subset a, which Paloma has not");
  OT_ASSERT_OK(RemoveTree(paloma));
  uint64_t seed = 1;
  for (const std::string& name : PalomaSubsets()) {
    OT_ASSERT_OK(WriteTinySubset(root(), name, ++seed, 32));
  }
  OT_ASSERT_OK(RenamePath(root() + "/held_out", paloma));
  absl::StatusOr<EvaluationScores> scores = Scores(overrides);
  OT_ASSERT_OK(scores);
  EXPECT_EQ(scores->primary()->macro_tag(), "eval/paloma/macro_loss");
  EXPECT_EQ(scores->primary()->subsets.size(), 16u);
  EXPECT_EQ(scores->primary()->subsets.at(0).name, "4chan");
  // One too short to fill a window, then one missing.
  OT_ASSERT_OK(RemoveTree(paloma + "/ptb"));
  OT_ASSERT_OK(WriteTinySubset(root(), "ptb", 99, 15));
  OT_ASSERT_OK(RenamePath(root() + "/held_out/ptb", paloma + "/ptb"));
  scores = Scores(overrides);
  OT_ASSERT_OK(scores);
  EXPECT_EQ(scores->primary()->macro_tag(), "eval/paloma/partial_macro_loss");
  OT_ASSERT_OK(RemoveTree(paloma + "/ptb"));
  scores = Scores(overrides);
  OT_ASSERT_OK(scores);
  EXPECT_EQ(scores->primary()->macro_tag(), "eval/paloma/partial_macro_loss");
}

TEST_F(EvaluatorTest, Mistakes) {
  OT_EXPECT_ERROR(Open({"eval.held_out=[" + root() + "/nowhere]"}), "nowhere");
  OT_EXPECT_ERROR(Open({"eval.held_out=[" + root() + "/held_out, " + root() + "/held_out]"}),
                  "so has a directory before it");
  OT_EXPECT_ERROR(Open({"data.sequence_length=1024"}), "no subset fills a window of 1024");
  OT_EXPECT_ERROR(Open({"eval.tokenizer=bytes"}), "tokenizer");
  identity_.tokenizer_hash = "ffff";
  OT_EXPECT_ERROR(Open({}), "tokenizer");
  const std::string text = root() + "/text/novel/val";
  OT_ASSERT_OK(CreateDirectories(text));
  std::ofstream(text + "/val.jsonl") << "";
  OT_EXPECT_ERROR(Open({"eval.held_out=[" + root() + "/text]"}), "tokenizer");
  identity_ = ShardIdentity();
  OT_EXPECT_ERROR(
      Open({"eval.held_out=[" + root() + "/text]", "eval.tokenizer=bytes", "model.vocab_size=258"}),
      "holds no document");
}

// Bytes of the scored targets of text, and levanter's count of the same.
TEST_F(EvaluatorTest, BitsPerByteOfText) {
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      LoadTokenizer("bytes", TokenizerOptions());
  OT_ASSERT_OK(tokenizer);
  identity_ = ShardIdentity();  // no corpus: the tokenizer's own, BOS + text + EOS
  const std::string text = root() + "/text/novel/val";
  OT_ASSERT_OK(CreateDirectories(text));
  std::ofstream(text + "/val.jsonl") << "{\"text\": \"caf\u00e9 au lait\"}\n";  // 13 bytes
  const absl::StatusOr<EvaluationScores> scores =
      Scores({"eval.held_out=[" + root() + "/text]", "eval.tokenizer=bytes", "eval.tail=keep",
              "model.vocab_size=258"});
  OT_ASSERT_OK(scores);
  const SubsetScore& score = scores->collections.at(0).subsets.at(0);
  EXPECT_EQ(score.weight, 14);  // 13 bytes and EOS
  ASSERT_TRUE(score.bytes.has_value());
  EXPECT_EQ(*score.bytes, 13);
  const double bits = score.loss_sum * std::numbers::log2e;
  EXPECT_TRUE(std::abs(*score.bpb_exact() - bits / 13) <= 1e-12);
  // Decoded alone, each of the two bytes of the accented letter is a replacement character of three
  // bytes: 11 + 6.
  EXPECT_TRUE(std::abs(*score.bpb() - bits / 17) <= 1e-12);
}

// `overtok eval` finds the values that the run itself found at its last step.
TEST_F(EvaluatorTest, ACheckpointScoresAsItDidInTheRun) {
  ASSERT_EQ(Train(TinyConfig(root(), "run").value(), TrainOptions(), testing::Alone()).value(), 0);
  const LoadedConfig loaded = TinyConfig(root(), "run").value();
  const absl::StatusOr<EvaluationReport> report = EvaluateCheckpoint(loaded, {}, testing::Alone());
  OT_ASSERT_OK(report);
  EXPECT_EQ(report->step, 10);
  EXPECT_EQ(report->tokens, 480);
  const std::string metrics = ReadFile(root() + "/run/metrics.jsonl").value();
  MetricsLine line(10, "eval");
  report->scores.AddTo(&line);
  const std::string text = line.ToJson(0);
  const size_t begin = text.find("\"eval/"), end = text.size() - 1;
  EXPECT_NE(metrics.find(text.substr(begin, end - begin)), std::string::npos) << text;
  OT_EXPECT_ERROR(EvaluateCheckpoint(loaded, {.step = 3}, testing::Alone()),
                  "finished ones are of the steps: 10");
  OT_EXPECT_ERROR(EvaluateCheckpoint(TinyConfig(root(), "run", {"model.hybrid_norm=false"}).value(),
                                     {}, testing::Alone()),
                  "model.hybrid_norm");
  OT_EXPECT_ERROR(EvaluateCheckpoint(TinyConfig(root(), "none").value(), {}, testing::Alone()),
                  "no finished checkpoint");
}

}  // namespace
}  // namespace overtok
