// Faults that users of other trainers reported of several ranks, as they would show in training
// steps here. One test a fault, named for what it guards.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/trainer/ranks_run.h"

namespace overtok {
namespace {

using testing::Differing;
using testing::Distance;
using testing::LargestDistance;
using testing::RanksBatch;
using testing::RanksConfig;
using testing::RanksResult;
using testing::RanksRun;
using testing::TrainOnRanks;

// f32 sums of another order; the faults below are of the order of 1.
constexpr double kTolerance = 1e-5;

double Norm(const testing::LogicalTensor& tensor) {
  double square = 0;
  for (const double v : tensor.values()) square += v * v;
  return std::sqrt(square);
}

void ExpectSameStep(const RanksResult& found, const RanksResult& expected) {
  std::string worst;
  ASSERT_EQ(found.error, "");
  ASSERT_EQ(expected.error, "");
  EXPECT_EQ(found.copies_that_differ, 0);
  EXPECT_EQ(found.results_that_differ, 0);
  double distance = LargestDistance(found.gradients, expected.gradients, &worst);
  EXPECT_TRUE(distance <= kTolerance) << "gradient of " << worst << ": " << distance;
  distance = LargestDistance(found.values, expected.values, &worst);
  EXPECT_TRUE(distance <= kTolerance) << worst << ": " << distance;
}

// allenai/OLMo-core#452: NaN where all instances of one rank were masked.
TEST(ReportedFaultsOfRanks, ARankWithoutTargetsAddsNothing) {
  const auto run_on = [](int data, int silent) {
    RanksRun run = {.data = data};
    run.batch = [silent](const Config& of, int64_t step) {
      Batch batch = RanksBatch(of, step);
      for (int64_t b = 0; b < 4; ++b) {
        for (int64_t t = 0; t + 1 < batch.length; ++t) {
          batch.loss_weight[static_cast<size_t>(b * batch.length + t)] = b < silent ? 0 : 1;
        }
      }
      batch.weight_sum = static_cast<double>((4 - silent) * (batch.length - 1));
      return batch;
    };
    return TrainOnRanks(RanksConfig(), run);
  };
  for (const int silent : {1, 2, 3}) {
    const RanksResult expected = run_on(1, silent), found = run_on(4, silent);
    ExpectSameStep(found, expected);
    EXPECT_EQ(found.steps[0].weight_sum, (4 - silent) * 7);
    EXPECT_TRUE(std::isfinite(found.steps[0].loss));
  }
}

// huggingface/transformers#34191, torchtune#1917: a mean of means over ranks weighs the one token
// of a rank like the seven of another.
TEST(ReportedFaultsOfRanks, RanksAreWeighedByTokens) {
  const auto run_on = [](int data, int64_t counted) {
    RanksRun run = {.data = data};
    run.batch = [counted](const Config& of, int64_t step) {
      Batch batch = RanksBatch(of, step);
      std::fill(batch.loss_weight.begin(), batch.loss_weight.end(), 0.0F);
      batch.weight_sum = 0;
      // One token of window 0, seven of window 3; or one of the two alone.
      for (const auto& [window, count] : std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {3, 7}}) {
        if (counted >= 0 && counted != window) continue;
        for (int64_t t = 0; t < count; ++t) {
          batch.loss_weight[static_cast<size_t>(window * batch.length + t)] = 1;
          batch.weight_sum += 1;
        }
      }
      return batch;
    };
    return TrainOnRanks(RanksConfig(), run);
  };
  const RanksResult both = run_on(4, -1);
  ExpectSameStep(both, run_on(1, -1));
  const double one = run_on(1, 0).steps[0].loss, seven = run_on(1, 3).steps[0].loss;
  EXPECT_TRUE(std::abs(both.steps[0].loss - (one + 7 * seven) / 8) <= 1e-6);
  // By means of ranks it would be this.
  EXPECT_GT(std::abs(both.steps[0].loss - (one + seven) / 2), 1e-4);
}

// NVIDIA-NeMo/RL#3788, ROCm/TransformerEngine#715: gradients of norm gains, which every tensor rank
// holds, were counted once a rank.
TEST(ReportedFaultsOfRanks, ReplicatedParametersCountOnceInTheNorm) {
  for (const char* heads : {"model.num_key_value_heads=4", "model.num_key_value_heads=1"}) {
    const Config config = RanksConfig({heads});
    for (const auto& [data, tensor] : std::vector<std::pair<int, int>>{{1, 2}, {2, 2}, {1, 4}}) {
      const RanksResult found = TrainOnRanks(config, {.data = data, .tensor = tensor});
      ASSERT_EQ(found.error, "");
      double square = 0;
      for (const auto& [name, gradient] : found.gradients) square += std::pow(Norm(gradient), 2);
      // The sum of squares of the logical gradients, in f64 on both sides.
      EXPECT_TRUE(std::abs(found.steps[0].total_norm / std::sqrt(square) - 1) <= 1e-9);
    }
  }
}

// NVIDIA-NeMo/RL#3716, Megatron-LM#1446: copies of gains that ranks use on different tokens got
// different gradients and drifted apart.
TEST(ReportedFaultsOfRanks, CopiesDoNotDriftApart) {
  const Config config = RanksConfig({"model.num_key_value_heads=1"});
  const RanksResult found = TrainOnRanks(config, {.data = 2, .tensor = 2, .steps = 10});
  ASSERT_EQ(found.error, "");
  EXPECT_EQ(found.copies_that_differ, 0);
  // Every gain has moved.
  for (const auto& [name, before] : found.initial) {
    EXPECT_GT(Distance(found.values.at(name), before), 0) << name;
  }
}

// tenstorrent/tt-metal#51428, pytorch/torchtitan#3174: a tied matrix is divided once, for input and
// output alike, and both uses add up in it.
TEST(ReportedFaultsOfRanks, TiedEmbeddingsAreDividedOnce) {
  const Config config = RanksConfig({"model.tie_word_embeddings=true"});
  const RanksResult expected = TrainOnRanks(config, {});
  EXPECT_FALSE(expected.values.contains("lm_head.weight"));
  for (const int tensor : {2, 4})
    ExpectSameStep(TrainOnRanks(config, {.tensor = tensor}), expected);
}

// torchtitan's _LossParallelCrossEntropy refuses what leaves the last rank without a class.
TEST(ReportedFaultsOfRanks, RanksWithoutAClassTrain) {
  for (const char* map : {"cyclic64", "contiguous"}) {
    const Config config = RanksConfig({"model.vocab_size=5", std::string("parallel={tensor: 4, "
                                                                         "vocabulary_map: ") +
                                                                 map + "}"});
    ExpectSameStep(TrainOnRanks(config, {.tensor = 4}), TrainOnRanks(config, {}));
  }
}

// NVIDIA/Megatron-LM#7117: a choice by the local row count made the update depend on the layout. 56
// and 101 rows divide by neither 3 nor 4 parts of equal size.
TEST(ReportedFaultsOfRanks, UpdatesFollowLogicalShapes) {
  const Config config = RanksConfig({"model.num_attention_heads=6", "model.num_key_value_heads=3",
                                     "model.head_dim=8", "data.sequence_length=9"});
  const RanksResult expected = TrainOnRanks(config, {});
  ExpectSameStep(TrainOnRanks(config, {.tensor = 3}), expected);
  EXPECT_TRUE(Differing(expected.initial, expected.values).find("up_proj") != std::string::npos);
}

// OLMo-core#307: parts that were drawn with the same seed started identical.
TEST(ReportedFaultsOfRanks, PartsStartAsPartsOfOneTensor) {
  const Config config = RanksConfig(testing::OtH());
  const RanksResult expected = TrainOnRanks(config, {.steps = 0});
  for (const auto& [data, tensor] : std::vector<std::pair<int, int>>{{4, 1}, {2, 2}, {1, 4}}) {
    const RanksResult found = TrainOnRanks(config, {.data = data, .tensor = tensor, .steps = 0});
    EXPECT_EQ(Differing(found.values, expected.values), "");
    EXPECT_EQ(found.copies_that_differ, 0);
  }
}

}  // namespace
}  // namespace overtok
