#include "trainer/evaluation_scores.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "trainer/evaluation_data.h"

namespace overtok {
namespace {

SubsetScore Score(const std::string& name, double mean, double targets) {
  SubsetScore score;
  score.name = name;
  score.loss_sum = mean * targets;
  score.weight = targets;
  return score;
}

CollectionScore Collection(const std::string& prefix) {
  CollectionScore collection;
  collection.prefix = prefix;
  return collection;
}

// cases.md 82: a set without targets is left out and not counted as 0; the micro mean weighs
// targets.
TEST(EvaluationScoresTest, MacroAndMicro) {
  CollectionScore collection = Collection("eval/held_out");
  collection.subsets = {Score("a", 2, 300), Score("b", 4, 100)};
  collection.left_out = {"empty"};
  EXPECT_EQ(collection.macro_loss(), 3.0);
  EXPECT_EQ(collection.micro_loss(), 2.5);
}

// cases.md 78: perplexity is exp(total nats / total targets), so means of batches never enter.
TEST(EvaluationScoresTest, MicroIsTotalNatsOverTotalTargets) {
  CollectionScore collection = Collection("eval/held_out");
  collection.subsets = {Score("a", 0, 2), Score("b", std::log(10.0), 1)};
  // cbrt(10), by hand.
  EXPECT_TRUE(std::abs(std::exp(collection.micro_loss()) - 2.15443469) <= 1e-8);
}

TEST(EvaluationScoresTest, BitsPerByte) {
  SubsetScore score = Score("a", std::log(2.0), 8);
  EXPECT_FALSE(score.bpb_exact().has_value());
  EXPECT_FALSE(score.bpb().has_value());
  score.bytes = 16;
  score.levanter_sum = 8 * 0.25;
  // One bit a target, two bytes a target. Rounding of ln 2 and log2 e: a few units of 1e-16.
  EXPECT_TRUE(std::abs(*score.bpb_exact() - 0.5) <= 1e-15);
  EXPECT_TRUE(std::abs(*score.bpb() - 0.25) <= 1e-15);
  score.bytes = 0;
  EXPECT_FALSE(score.bpb_exact().has_value());
}

TEST(EvaluationScoresTest, AMeanOverAPartOfPalomaHasAnotherName) {
  CollectionScore paloma = Collection("eval/paloma");
  paloma.subsets = {Score("c4_en", 3, 10)};
  paloma.complete = false;
  CollectionScore held_out = Collection("eval/held_out");
  held_out.subsets = {Score("a", 2, 10)};
  EvaluationScores scores;
  scores.collections = {paloma, held_out};
  MetricsLine line(7, "eval");
  scores.AddTo(&line);
  const auto json = nlohmann::json::parse(line.ToJson(0));
  EXPECT_EQ(json.at("eval/paloma/c4_en/loss"), 3.0);
  EXPECT_EQ(json.at("eval/paloma/partial_macro_loss"), 3.0);
  EXPECT_FALSE(json.contains("eval/paloma/macro_loss"));
  EXPECT_FALSE(json.contains("eval/paloma/micro_loss"));
  EXPECT_EQ(json.at("eval/held_out/a/loss"), 2.0);
  EXPECT_EQ(json.at("eval/held_out/macro_loss"), 2.0);
  EXPECT_EQ(json.at("eval/held_out/micro_loss"), 2.0);
  EXPECT_FALSE(json.contains("eval/held_out/a/bpb"));
  EXPECT_EQ(scores.primary()->macro_tag(), "eval/paloma/partial_macro_loss");
}

TEST(WindowsToScoreTest, TailIsDroppedOrKept) {
  using Tail = EvalConfig::Tail;
  EXPECT_EQ(WindowsToScore(0, 16, Tail::kDrop), 0);
  EXPECT_EQ(WindowsToScore(15, 16, Tail::kDrop), 0);
  EXPECT_EQ(WindowsToScore(16, 16, Tail::kDrop), 1);
  EXPECT_EQ(WindowsToScore(47, 16, Tail::kDrop), 2);
  EXPECT_EQ(WindowsToScore(0, 16, Tail::kKeep), 0);
  EXPECT_EQ(WindowsToScore(1, 16, Tail::kKeep), 0);  // no target
  EXPECT_EQ(WindowsToScore(2, 16, Tail::kKeep), 1);
  EXPECT_EQ(WindowsToScore(33, 16, Tail::kKeep), 2);
  EXPECT_EQ(WindowsToScore(47, 16, Tail::kKeep), 3);
}

}  // namespace
}  // namespace overtok
