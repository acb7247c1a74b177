// Windows by number of reads, the scrambled n-grams, and `overtok eval` on runs with the methods.
#include "trainer/seen_split.h"

#include <map>
#include <nlohmann/json.hpp>

#include "core/io/files.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/tiny_run.h"
#include "trainer/evaluate.h"
#include "trainer/run_directory.h"
#include "trainer/train_loop.h"

namespace overtok {
namespace {

using testing::kTinyWindow;
using testing::MakeTinyCorpus;
using testing::MethodOverrides;
using testing::TemporaryDirectory;
using testing::TinyConfig;

class SeenSplitTest : public ::testing::Test {
 protected:
  void SetUp() override { OT_ASSERT_OK(MakeTinyCorpus(root())); }
  const std::string& root() const { return directory_.path(); }
  LoadedConfig Load(std::vector<std::string> overrides, bool methods = true) {
    const std::vector<std::string> base = methods ? MethodOverrides() : std::vector<std::string>();
    overrides.insert(overrides.begin(), base.begin(), base.end());
    return TinyConfig(root(), "run", overrides).value();
  }
  TemporaryDirectory directory_;
};

TEST_F(SeenSplitTest, CountsAreThoseOfTheOrder) {
  LoadedConfig loaded = Load({});
  const absl::StatusOr<TrainingData> data = OpenTrainingData(&loaded);
  OT_ASSERT_OK(data);
  for (const int64_t sequences : {0, 6, 15, 30}) {
    std::map<int64_t, int64_t> reads;
    for (int64_t s = 0; s < sequences; ++s) ++reads[data->order.Window(s)];
    std::map<int64_t, std::vector<int64_t>> expected;
    for (int64_t window = 0; window < 10; ++window) expected[reads[window]].push_back(window);
    const std::vector<SeenSlice> slices = SliceByReads(data->order, 10, sequences, 100);
    ASSERT_EQ(slices.size(), expected.size()) << sequences;
    for (const SeenSlice& slice : slices) {
      EXPECT_EQ(slice.windows, expected.at(slice.reads)) << sequences;
      EXPECT_EQ(slice.available, static_cast<int64_t>(slice.windows.size()));
    }
  }
  // Evenly spread where there are more than asked for.
  const std::vector<SeenSlice> few = SliceByReads(data->order, 10, 0, 4);
  ASSERT_EQ(few.size(), 1u);
  EXPECT_THAT(few[0].windows, ::testing::ElementsAre(0, 2, 5, 7));
  EXPECT_EQ(few[0].available, 10);

  const absl::StatusOr<EvaluationCollection> collection =
      SeenCollection(*data, SliceByReads(data->order, 10, 6, 3));
  OT_ASSERT_OK(collection);
  ASSERT_EQ(collection->subsets.size(), 2u);
  EXPECT_EQ(collection->subsets[0].data.name, "never");
  EXPECT_EQ(collection->subsets[1].data.name, "1x");
  for (size_t i = 0; i < 2; ++i) {
    const std::vector<int64_t> windows = SliceByReads(data->order, 10, 6, 3)[i].windows;
    std::vector<uint32_t> ids(3 * kTinyWindow);
    for (size_t w = 0; w < 3; ++w) {
      OT_ASSERT_OK(
          data->corpus->Read(windows[w] * kTinyWindow, kTinyWindow, ids.data() + w * kTinyWindow));
    }
    EXPECT_EQ(collection->subsets[i].data.ids, ids);
  }
}

// A model of ten windows remembers them: those it read score better than those it did not.
TEST_F(SeenSplitTest, EvaluatesTheSlicesBesideTheHeldOutSets) {
  const std::vector<std::string> overrides = {
      "data.passes=4", "train.steps=8", "optimizer.adam_lr=0.03", "loss.sampled_softmax=null"};
  ASSERT_EQ(Train(Load(overrides), TrainOptions(), testing::Alone()).value(), 0);
  EvaluateOptions options;
  options.seen = true;
  options.windows = 2;
  const absl::StatusOr<EvaluationReport> report =
      EvaluateCheckpoint(Load(overrides), options, testing::Alone());
  OT_ASSERT_OK(report);
  ASSERT_EQ(report->scores.collections.size(), 2u);
  EXPECT_EQ(report->scores.collections[0].prefix, "eval/held_out");
  EXPECT_EQ(report->scores.collections[1].prefix, "eval/seen");
  ASSERT_EQ(report->seen.size(), 2u);
  EXPECT_EQ(report->seen[0].reads, 0);  // two batches of three are read four times, four windows
                                        // never
  EXPECT_EQ(report->seen[0].available, 4);
  EXPECT_EQ(report->seen[1].reads, 4);
  EXPECT_EQ(report->seen[1].available, 6);
  const std::vector<SubsetScore>& slices = report->scores.collections[1].subsets;
  ASSERT_EQ(slices.size(), 2u);
  EXPECT_EQ(slices[0].name, "never");
  EXPECT_EQ(slices[1].name, "4x");
  EXPECT_EQ(slices[0].windows, 2);
  EXPECT_LT(slices[1].loss(), slices[0].loss());
  const auto json = nlohmann::json::parse(report->ToJson());
  EXPECT_EQ(json.at("seen").at(1).at("windows_available"), 6);
  EXPECT_EQ(json.at("collections").at("eval/seen").at("subsets").at("4x").at("windows"), 2);
  EXPECT_FALSE(json.at("collections").at("eval/seen").contains("macro_loss"));
  EXPECT_THAT(report->ToText(), ::testing::HasSubstr("read 4 times: 6 windows, 2 of them scored"));
}

TEST_F(SeenSplitTest, ScramblingChangesModelsWithTables) {
  // Rows apart by modulus / 2 + 7919 (mod modulus) differ from their own.
  ASSERT_EQ(Train(Load({}), TrainOptions(), testing::Alone()).value(), 0);
  EvaluateOptions options;
  const absl::StatusOr<EvaluationReport> plain =
      EvaluateCheckpoint(Load({}), options, testing::Alone());
  options.scramble_ngrams = true;
  const absl::StatusOr<EvaluationReport> scrambled =
      EvaluateCheckpoint(Load({}), options, testing::Alone());
  OT_ASSERT_OK(plain);
  OT_ASSERT_OK(scrambled);
  EXPECT_NE(plain->scores.primary()->macro_loss(), scrambled->scores.primary()->macro_loss());
  EXPECT_THAT(scrambled->ToText(), ::testing::HasSubstr("scrambled"));
  EXPECT_EQ(nlohmann::json::parse(scrambled->ToJson()).at("scrambled_ngrams"), true);
  EXPECT_EQ(nlohmann::json::parse(plain->ToJson()).at("scrambled_ngrams"), false);
  OT_EXPECT_ERROR(EvaluateCheckpoint(Load({}, false), options, testing::Alone()),
                  "no n-gram tables");
}

// `overtok eval` reads tables whose rows reflect different steps and finds the run's own values, in
// a sampled stage its mark and its second curve too.
TEST_F(SeenSplitTest, ACheckpointOfTheMethodsScoresAsItDidInTheRun) {
  for (const char* each_pass : {"keep", "rehash"}) {
    for (const int64_t steps : {7, 10}) {
      const std::vector<std::string> overrides = {
          absl::StrCat("model.ngram_embedding.each_pass=", each_pass), "checkpoint.every_steps=7",
          "eval.inclusion_adjusted=true", "eval.every_steps=7"};
      OT_ASSERT_OK(RemoveTree(root() + "/run"));
      ASSERT_EQ(Train(Load(overrides), TrainOptions(), testing::Alone()).value(), 0);
      EvaluateOptions options;
      options.step = steps;
      const absl::StatusOr<EvaluationReport> report =
          EvaluateCheckpoint(Load(overrides), options, testing::Alone());
      OT_ASSERT_OK(report);
      EXPECT_EQ(report->stage_candidates, steps == 7 ? 32 : 0);
      EXPECT_EQ(report->scores.adjusted.size(), steps == 7 ? 1u : 0u);
      MetricsLine line(steps, "eval");
      report->scores.AddTo(&line);
      const std::string text = line.ToJson(0);
      const size_t begin = text.find("\"eval/"), end = text.size() - 1;
      EXPECT_NE(
          ReadFile(root() + "/run/metrics.jsonl").value().find(text.substr(begin, end - begin)),
          std::string::npos)
          << each_pass << " " << text;
    }
  }
}

}  // namespace
}  // namespace overtok
