// The arms lie over every recipe and come to the published numbers.
#include <map>

#include "model/ngram_rows.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/config/support.h"
#include "trainer/config/derived.h"
#include "trainer/config/table_costs.h"

namespace overtok {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kConfigs[] = OVERTOK_SOURCE_DIR "/configs/";

const std::vector<std::string>& Arms() {
  static const auto* const arms = new std::vector<std::string>{
      "ss",    "oe",      "head2_only", "ot_h",         "ot_h_ss",   "ot_2",
      "focal", "ot_2_ss", "frozen",     "small_tables", "repeat_2_4"};
  return *arms;
}

absl::StatusOr<LoadedConfig> LoadArms(const std::string& recipe,
                                      const std::vector<std::string>& arms) {
  std::vector<std::string> files;
  files.reserve(arms.size());
  for (const std::string& arm : arms)
    files.push_back(absl::StrCat(kConfigs, "arms/", arm, ".yaml"));
  return LoadConfig(absl::StrCat(kConfigs, recipe, ".yaml"), {}, files);
}

struct Published {
  const char* recipe;
  int64_t tables, width;     // input tables
  int64_t table_parameters;  // billions, to three decimals: 4.352, 6.554, 8.730, 17.434
  int64_t projections;
  std::vector<uint64_t> moduli;
  std::vector<int64_t> stage_ends;
  int64_t steps;
  int64_t second_pass;  // of 2.4
};

const std::vector<Published>& AllPublished() {
  static const auto* const all = new std::vector<Published>{
      {"recipes/130m", 2, 170, 4352, 174080, {12800000, 12800004}, {2827, 4017, 4612}, 4959, 2066},
      {"recipes/300m",
       2,
       256,
       6554,
       393216,
       {12800000, 12800004},
       {6523, 9270, 10643},
       11444,
       4768},
      {"recipes/520m", 2, 341, 8730, 698368, {12800000, 12800004}, {5653, 8034, 9224}, 9918, 4132},
      {"recipes/1_2b",
       6,
       227,
       17434,
       2789376,
       {12800000, 12800004, 12800008, 12800012, 12800016, 12800020},
       {13046, 18539, 21286},
       22888,
       9537}};
  return *all;
}

TEST(Arms, LieOverEveryRecipe) {
  for (const Published& recipe : AllPublished()) {
    for (const std::string& arm : Arms()) {
      const auto loaded = LoadArms(recipe.recipe, {arm});
      OT_ASSERT_OK(loaded);
      EXPECT_EQ(loaded->config.train.steps, recipe.steps) << arm;
      const std::string text = ResolvedYaml(loaded->config);
      const auto again = LoadConfigText(text, "resolved.yaml");
      OT_ASSERT_OK(again);
      EXPECT_EQ(ResolvedYaml(again->config), text) << recipe.recipe << " " << arm;
    }
  }
}

TEST(Arms, WhatEachTurnsOn) {
  struct On {
    bool sampled, embedding, second, gram;
    double focal;
  };
  const std::map<std::string, On> expected = {
      {"ss", {true, false, false, false, 0}},          {"oe", {false, true, false, false, 0}},
      {"head2_only", {false, false, true, false, 0}},  {"ot_h", {false, true, true, false, 0}},
      {"ot_h_ss", {true, true, true, false, 0}},       {"ot_2", {false, true, false, true, 0}},
      {"ot_2_ss", {true, true, false, true, 0}},       {"focal", {false, false, false, false, 1}},
      {"small_tables", {false, true, true, false, 0}}, {"frozen", {false, true, true, false, 0}},
      {"repeat_2_4", {false, false, false, false, 0}}};
  for (const std::string& arm : Arms()) {
    const auto loaded = LoadArms("recipes/130m", {arm});
    OT_ASSERT_OK(loaded);
    const Config& c = loaded->config;
    const On& on = expected.at(arm);
    EXPECT_EQ(c.loss.sampled_softmax.has_value(), on.sampled) << arm;
    EXPECT_EQ(c.model.ngram_embedding.has_value(), on.embedding) << arm;
    EXPECT_EQ(c.model.second_token_head.has_value(), on.second) << arm;
    EXPECT_EQ(c.model.ngram_head.has_value(), on.gram) << arm;
    EXPECT_EQ(c.loss.focal_gamma, on.focal) << arm;
    EXPECT_EQ(c.data.passes.has_value(), arm == "frozen" || arm == "repeat_2_4") << arm;
  }
}

TEST(Arms, TablesAreThePublishedOnes) {
  for (const Published& recipe : AllPublished()) {
    const auto loaded = LoadArms(recipe.recipe, {"ot_h"});
    OT_ASSERT_OK(loaded);
    const ModelConfig& model = loaded->config.model;
    const std::vector<NgramTable> tables = InputTables(*model.ngram_embedding, model.vocab_size);
    std::vector<uint64_t> moduli;
    moduli.reserve(tables.size());
    for (const NgramTable& table : tables) moduli.push_back(table.modulus);
    EXPECT_EQ(moduli, recipe.moduli) << recipe.recipe;
    EXPECT_EQ(tables[tables.size() / 2 - 1].order, 2);
    EXPECT_EQ(tables[tables.size() / 2].order, 3);
    EXPECT_EQ(model.ngram_embedding->width, recipe.width) << recipe.recipe;
    const ParameterCounts counts = CountParameters(model);
    EXPECT_EQ((counts.ngram_tables + 500000) / 1000000, recipe.table_parameters);
    EXPECT_EQ(counts.ngram_projections, recipe.projections) << recipe.recipe;
    EXPECT_EQ(loaded->config.loss.block_sequences, 32);
  }
}

TEST(Arms, StagesEndWhereThePublishedOnesDo) {
  for (const Published& recipe : AllPublished()) {
    const auto loaded = LoadArms(recipe.recipe, {"ss"});
    OT_ASSERT_OK(loaded);
    std::vector<int64_t> ends, candidates;
    int64_t begin = 0;
    for (const StageSpan& stage : Stages(loaded->config)) {
      EXPECT_EQ(stage.begin, begin);
      begin = stage.end;
      ends.push_back(stage.end);
      candidates.push_back(stage.candidates);
    }
    EXPECT_EQ(ends.back(), recipe.steps);
    ends.pop_back();
    EXPECT_EQ(ends, recipe.stage_ends) << recipe.recipe;
    EXPECT_THAT(candidates, ElementsAre(24576, 36864, 65536, 128256));
  }
}

TEST(Arms, FrozenWhereTheSecondPassBegins) {
  for (const Published& recipe : AllPublished()) {
    const auto loaded = LoadArms(recipe.recipe, {"frozen"});
    OT_ASSERT_OK(loaded);
    EXPECT_EQ(KeptBatches(loaded->config), recipe.second_pass) << recipe.recipe;
    EXPECT_EQ(loaded->config.optimizer.tables.freeze_step, recipe.second_pass) << recipe.recipe;
    EXPECT_THAT(ResolvedYaml(loaded->config), HasSubstr("freeze_after_passes: 0\n"));
  }
}

TEST(Arms, LieOverEachOther) {
  auto loaded = LoadArms("recipes/300m", {"ot_h_ss", "small_tables", "repeat_2_4"});
  OT_ASSERT_OK(loaded);
  EXPECT_EQ(loaded->config.model.ngram_embedding->rows, 1280000);
  EXPECT_TRUE(loaded->config.loss.sampled_softmax.has_value());
  EXPECT_EQ(KeptBatches(loaded->config), 4768);
  // Passes of 4,768 steps: the third begins at 9,536, near the end of the second stage at 9,270.
  ASSERT_EQ(loaded->warnings.size(), 1u);
  EXPECT_THAT(loaded->warnings[0], HasSubstr("arms/ss.yaml:5: loss.sampled_softmax.stages: the "
                                             "stage of 36864 candidates ends at step 9270, within "
                                             "3 % of the run from step 9536"));
  loaded = LoadArms("recipes/130m", {"ot_h", "focal"});
  OT_ASSERT_OK(loaded);
  EXPECT_EQ(loaded->config.loss.focal_gamma, 1);
  OT_EXPECT_ERROR(LoadArms("recipes/130m", {"ot_2", "focal"}), "does not go with model.ngram_head");
  OT_EXPECT_ERROR(LoadArms("recipes/130m", {"ss", "focal"}),
                  "arms/focal.yaml:4: loss.focal_gamma: 1 does not go with loss.sampled_softmax");
}

TEST(Arms, OverASmallerVocabulary) {
  for (const std::string& arm : Arms()) {
    const auto loaded = LoadArms("quickstart", {arm});
    if (arm == "ss" || arm == "ot_h_ss" || arm == "ot_2_ss") {
      OT_EXPECT_ERROR(loaded,
                      "arms/ss.yaml:5: loss.sampled_softmax.stages: 24576 candidates are more than "
                      "the 16384 classes of model.vocab_size");
      OT_EXPECT_ERROR(loaded, "{until: 0.57, candidates: 3139}");
    } else {
      OT_ASSERT_OK(loaded);
    }
  }
}

TEST(Arms, RepeatedDataAndLargeTablesAreAWarning) {
  auto loaded = LoadArms("recipes/300m", {"ot_h", "repeat_2_4"});
  OT_ASSERT_OK(loaded);
  ASSERT_EQ(loaded->warnings.size(), 1u);
  EXPECT_THAT(loaded->warnings[0], HasSubstr("arms/oe.yaml:4: model.ngram_embedding: the tables "
                                             "have 6.55B parameters and the run repeats 2.50B "
                                             "tokens: 2.62 parameters a token"));
  loaded = LoadArms("recipes/300m", {"frozen"});  // before anything repeats
  OT_ASSERT_OK(loaded);
  EXPECT_TRUE(loaded->warnings.empty());
  loaded = LoadArms("recipes/300m", {"small_tables", "repeat_2_4"});
  OT_ASSERT_OK(loaded);
  EXPECT_TRUE(loaded->warnings.empty());
  // Once the corpus says that the data repeats; 2,441,406 windows are 10 billion tokens.
  loaded = LoadArms("recipes/1_2b", {"ot_h"});
  OT_ASSERT_OK(loaded);
  EXPECT_TRUE(loaded->warnings.empty());
  OT_ASSERT_OK(ResolveHorizon(2441406, &*loaded));
  ASSERT_EQ(loaded->warnings.size(), 1u);
  EXPECT_THAT(loaded->warnings[0], HasSubstr("1.74 parameters a token"));
  OT_ASSERT_OK(ResolveHorizon(2441406, &*loaded));
  EXPECT_EQ(loaded->warnings.size(), 1u);
  loaded = LoadArms("recipes/300m", {"ot_h"});
  OT_ASSERT_OK(loaded);
  OT_ASSERT_OK(ResolveHorizon(2441406, &*loaded));
  EXPECT_TRUE(loaded->warnings.empty());  // 0.6 passes
}

TEST(Arms, ParametersByGroup) {
  const ParameterCounts base = CountParameters(LoadArms("recipes/130m", {})->config.model);
  const ParameterCounts ot_h = CountParameters(LoadArms("recipes/130m", {"ot_h"})->config.model);
  EXPECT_EQ(ot_h.baseline(), base.total());
  EXPECT_EQ(ot_h.block_matrices(), base.block_matrices());
  EXPECT_EQ(ot_h.muonh() - base.muonh(), 174080 + 512 * 512);
  EXPECT_EQ(ot_h.adamh() - base.adamh(), 128256 * 512);
  EXPECT_EQ(ot_h.adam() - base.adam(), int64_t{25600004} * 170);
  auto ot_2 = LoadArms("recipes/130m", {"ot_2"});
  OT_ASSERT_OK(ot_2);
  ot_2->config.model.ngram_head->orders = {2, 3};
  const ParameterCounts counts = CountParameters(ot_2->config.model);
  EXPECT_EQ(counts.gram_tables, int64_t{25600004} * 170);
  EXPECT_EQ(counts.gram_projections, 2 * (512 * 512 + 512 * 170));
  EXPECT_EQ(counts.muonh() - base.muonh(), 174080 + counts.gram_projections);
  EXPECT_EQ(counts.adamh(), base.adamh());
}

// 52, 79, 105 and 209 GB of values and moments are published (4 more bytes a row are the steps that
// it reflects).
TEST(Arms, BytesOfTables) {
  const std::vector<double> published = {52, 79, 105, 209};
  for (size_t i = 0; i < published.size(); ++i) {
    const auto loaded = LoadArms(AllPublished()[i].recipe, {"oe"});
    OT_ASSERT_OK(loaded);
    const std::vector<TableCost> tables = TableCosts(loaded->config);
    EXPECT_EQ(static_cast<int64_t>(tables.size()), AllPublished()[i].tables);
    EXPECT_EQ(tables[1].name, "ngram.1");
    const TableTotals totals = TotalOf(tables);
    EXPECT_EQ(totals.parameters, CountParameters(loaded->config.model).ngram_tables);
    EXPECT_EQ(totals.value_bytes, 4 * totals.parameters);
    int64_t rows = 0;
    for (const TableCost& table : tables) rows += table.rows;
    EXPECT_EQ(totals.state_bytes, 8 * totals.parameters + 4 * rows);
    const double bytes = 12 * static_cast<double>(totals.parameters);
    EXPECT_TRUE(std::abs(bytes / 1e9 - published[i]) <= 0.5) << bytes;
  }
}

TEST(Arms, BytesOfTableOptions) {
  const auto loaded = LoadArms("recipes/130m", {"ot_2"});
  OT_ASSERT_OK(loaded);
  const std::vector<TableCost> tables = TableCosts(loaded->config);
  ASSERT_EQ(tables.size(), 3u);
  EXPECT_EQ(tables[2].name, "gram2");
  EXPECT_EQ(tables[2].rows, 12800000);
  const int64_t rows = 3 * int64_t{12800000} + 4;
  EXPECT_EQ(tables[0].touched_rows, 524288);
  // Of 170 elements: values and two moments twice to and fro with the step number, a gradient to
  // and fro, and one reading of the value for each token.
  EXPECT_EQ(tables[0].step_bytes,
            int64_t{524288} * (2 * 2 * (3 * 680 + 4) + 2 * 680) + int64_t{524288} * 680);
  std::map<std::string, TableTotals> options;
  for (const TableOption& option : TableOptions(loaded->config)) {
    options[option.setting] = option.totals;
  }
  EXPECT_EQ(options.at("update: exact").state_bytes, rows * (2 * 680 + 4));
  EXPECT_EQ(options.at("storage: bf16").value_bytes, rows * 340);
  EXPECT_EQ(options.at("second_moment: row").state_bytes, rows * (680 + 4 + 4));
  EXPECT_EQ(options.at("beta1: 0").state_bytes, rows * (680 + 4));
  EXPECT_EQ(options.at("all three of these").state_bytes, rows * (4 + 4));
  EXPECT_EQ(options.at("update: adagrad").state_bytes, rows * 680);
  EXPECT_EQ(options.at("update: sgd").state_bytes, 0);
  EXPECT_LT(options.at("update: sgd").step_bytes, options.at("update: exact").step_bytes);
}

// The published costs: a head of fewer classes is cheaper in proportion.
TEST(Arms, OperationsOfTheMethods) {
  const double d = 512;
  auto base = LoadArms("recipes/130m", {});
  auto ss = LoadArms("recipes/130m", {"ss"});
  auto ot_h_ss = LoadArms("recipes/130m", {"ot_h_ss"});
  auto ot_2 = LoadArms("recipes/130m", {"ot_2"});
  const ForwardFlops plain = ActualForwardFlops(base->config);
  EXPECT_EQ(plain.total(), CausalForwardFlops(base->config.model, 4096).total());
  const ForwardFlops sampled = ActualForwardFlops(ss->config);
  const double classes =
      (2827. * 24576 + (4017. - 2827) * 36864 + (4612. - 4017) * 65536 + (4959. - 4612) * 128256) /
      4959;
  EXPECT_TRUE(std::abs(sampled.head / (2 * d * classes) - 1) <= 1e-12);  // rounding of f64
  EXPECT_EQ(sampled.matrices, plain.matrices);
  const ForwardFlops both = ActualForwardFlops(ot_h_ss->config);
  EXPECT_EQ(both.head, sampled.head);
  EXPECT_EQ(both.second_token_head, 2 * d * d + sampled.head);
  EXPECT_EQ(both.ngram_embedding, 2 * 174080);
  const ForwardFlops gram = ActualForwardFlops(ot_2->config);
  // 32 windows of 4,096 positions share 131,072 candidates of width 170.
  EXPECT_EQ(gram.ngram_head, 2 * d * d + 2 * d * 170 + 2 * 170 * 131072.);
  EXPECT_EQ(gram.head, plain.head);
  // What the baseline is counted as elsewhere stays.
  EXPECT_EQ(LevanterForwardFlops(ot_h_ss->config.model, 4096).total(), 227868672);
  EXPECT_EQ(BackboneFlops(ot_h_ss->config.model, 1), BackboneFlops(base->config.model, 1));
}

}  // namespace
}  // namespace overtok
