// Several ranks on a device with memory of its own, as threads that share the emulated one and talk
// through host memory: the contracts of ranks on CPUs (docs/parallel.md). Data ranks change no bit
// of a run of one rank there; tensor ranks agree with it to rounding.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>

#include "core/cuda/emulation/device.h"
#include "tests/trainer/ranks_run.h"

namespace overtok {
namespace {

using testing::Differing;
using testing::LargestDistance;
using testing::RanksConfig;
using testing::RanksResult;
using testing::TrainOnRanks;

// f32: sums of a few hundred products and of two ranks' parts in another order, 6e-8 each, through
// a layer and two updates. A missing or doubled contribution is of the order of 1.
constexpr double kTolerance = 2e-5;

// Input tables, the second-token head and a sampled softmax over blocks of two windows: of other
// ranks where each has one.
Config Tiny(int64_t micro_batches, const std::string& precision) {
  std::vector<std::string> overrides = testing::OtH();
  overrides.insert(overrides.end(),
                   {testing::Sampled(60, 2), "model.num_hidden_layers=1", "train.batch_sequences=4",
                    "train.micro_batch_sequences=" + std::to_string(4 / micro_batches),
                    "train.precision=" + precision, "optimizer.max_grad_norm=0.02"});
  return RanksConfig(overrides);
}

RanksResult Train(const Config& config, int data, int tensor) {
  return TrainOnRanks(config,
                      {.data = data, .tensor = tensor, .steps = 2, .device = EmulatedDevice()});
}

void ExpectWhole(const RanksResult& found) {
  ASSERT_EQ(found.error, "");
  EXPECT_EQ(found.results_that_differ, 0);
  EXPECT_EQ(found.copies_that_differ, 0);
  ASSERT_EQ(found.steps.size(), 2U);
  EXPECT_TRUE(std::isfinite(found.steps.back().loss));
  EXPECT_GT(found.steps.back().total_norm, 0);
  for (const auto& [name, tensor] : found.state) EXPECT_TRUE(tensor.EachOnce()) << name;
}

void ExpectSameBits(const RanksResult& found, const RanksResult& expected) {
  EXPECT_EQ(Differing(found.initial, expected.initial), "");
  EXPECT_EQ(Differing(found.gradients, expected.gradients), "");
  EXPECT_EQ(Differing(found.values, expected.values), "");
  EXPECT_EQ(Differing(found.state, expected.state), "");
  for (size_t i = 0; i < expected.steps.size(); ++i) {
    EXPECT_EQ(found.steps[i].loss, expected.steps[i].loss) << "step " << i;
    EXPECT_EQ(found.steps[i].norms, expected.steps[i].norms) << "step " << i;
  }
}

void ExpectClose(const RanksResult& found, const RanksResult& expected) {
  EXPECT_EQ(Differing(found.initial, expected.initial), "");
  std::string worst;
  double distance = LargestDistance(found.gradients, expected.gradients, &worst);
  EXPECT_TRUE(distance <= kTolerance) << "gradient of " << worst << ": " << distance;
  distance = LargestDistance(found.values, expected.values, &worst);
  EXPECT_TRUE(distance <= kTolerance) << worst << " after the steps: " << distance;
  for (size_t i = 0; i < expected.steps.size(); ++i) {
    EXPECT_TRUE(std::abs(found.steps[i].loss / expected.steps[i].loss - 1) <= 1e-6) << i;
    ASSERT_EQ(found.steps[i].tables.size(), expected.steps[i].tables.size());
    for (size_t t = 0; t < expected.steps[i].tables.size(); ++t) {
      EXPECT_EQ(found.steps[i].tables[t].rows_touched, expected.steps[i].tables[t].rows_touched);
    }
  }
}

TEST(EmulatedRanks, DataRanksChangeNoBit) {
  for (const char* precision : {"f32", "bf16"}) {
    SCOPED_TRACE(precision);
    // Four micro-batches a step: two of each rank.
    const Config config = Tiny(4, precision);
    const RanksResult alone = Train(config, 1, 1), two = Train(config, 2, 1);
    ExpectWhole(alone);
    ExpectWhole(two);
    ExpectSameBits(two, alone);
    EXPECT_NE(Differing(alone.initial, alone.values), "");
  }
}

TEST(EmulatedRanks, OneMicroBatchOfEachRank) {
  const Config config = Tiny(2, "f32");
  const RanksResult alone = Train(config, 1, 1), two = Train(config, 2, 1);
  ExpectWhole(alone);
  ExpectWhole(two);
  ExpectSameBits(two, alone);
}

// Kernels of two ranks at once, each on threads of its own.
TEST(EmulatedRanks, ThreadsOfRanksChangeNoBit) {
  const Config config = Tiny(4, "bf16");
  const RanksResult alone = Train(config, 1, 1);
  const RanksResult two =
      TrainOnRanks(config, {.data = 2,
                            .steps = 2,
                            .prepare = [](TrainStep&) { omp_set_num_threads(3); },
                            .device = EmulatedDevice()});
  ExpectWhole(two);
  ExpectSameBits(two, alone);
}

TEST(EmulatedRanks, TensorRanksAgree) {
  for (const int64_t micro_batches : {1, 4}) {
    SCOPED_TRACE(micro_batches);
    const Config config = Tiny(micro_batches, "f32");
    const RanksResult alone = Train(config, 1, 1), two = Train(config, 1, 2);
    ExpectWhole(alone);
    ExpectWhole(two);
    ExpectClose(two, alone);
  }
}

// What else is divided or has a way of its own: hashed heads, tied weights, shared key/value heads,
// blocks that score every class, the other map of the vocabulary, recomputed blocks.
TEST(EmulatedRanks, OtherModelsAgree) {
  std::vector<std::string> ot2 = testing::Ot2();
  ot2.push_back(testing::Sampled(60, 4));
  for (std::vector<std::string> overrides :
       {ot2,
        {"model.tie_word_embeddings=true", testing::Sampled(50, 2)},
        {"model.num_key_value_heads=1", testing::Sampled(9, 2)},
        {"parallel={tensor: 2, vocabulary_map: contiguous}", "train.recompute=block",
         "loss.z_loss=0.01"}}) {
    SCOPED_TRACE(overrides[0]);
    overrides.emplace_back("model.num_hidden_layers=1");
    const Config config = RanksConfig(overrides);
    const RanksResult alone = Train(config, 1, 1), two = Train(config, 1, 2);
    ExpectWhole(alone);
    ExpectWhole(two);
    ExpectClose(two, alone);
  }
}

TEST(EmulatedRanks, DataByTensor) {
  const Config config = Tiny(4, "f32");
  const RanksResult two = Train(config, 1, 2), four = Train(config, 2, 2);
  ExpectWhole(two);
  ExpectWhole(four);
  ExpectSameBits(four, two);
}

}  // namespace
}  // namespace overtok
