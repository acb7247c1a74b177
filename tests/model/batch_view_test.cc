// Classes and weights of the heads: wrap at the window's end, document borders, zero weights.
#include "model/batch_view.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "model/ngram_rows.h"

namespace overtok {
namespace {

struct Windows {
  int64_t length;
  std::vector<uint32_t> tokens;
  std::vector<int32_t> segments;
  std::vector<float> weights;
  BatchView view() const {
    BatchView batch;
    batch.sequences = static_cast<int64_t>(tokens.size()) / length;
    batch.length = length;
    batch.tokens = tokens.data();
    batch.segments = segments.data();
    batch.loss_weight = weights.data();
    return batch;
  }
};

ModelConfig AllHeads() {
  ModelConfig model;
  model.vocab_size = 10;
  model.second_token_head.emplace();
  model.second_token_head->weight = 0.3;
  model.ngram_head.emplace();
  model.ngram_head->orders = {2, 3};
  model.ngram_head->rows = 997;
  model.ngram_head->weight = 0.2;
  return model;
}

std::vector<uint32_t> Targets(const ModelConfig& model, HeadKind kind, const Windows& windows) {
  std::vector<uint32_t> out(windows.tokens.size());
  FillTargets(model, kind, windows.view(), out.data());
  return out;
}

std::vector<float> Weights(HeadKind kind, const Windows& windows, double expected_sum) {
  std::vector<float> out(windows.tokens.size(), std::nanf(""));
  const double sum = FillTargetWeights(kind, windows.view(), out.data());
  EXPECT_EQ(sum, expected_sum);  // the weights of the tests are small multiples of 1/8
  return out;
}

constexpr HeadKind kEvery[] = {HeadKind::kMain, HeadKind::kSecondToken, HeadKind::kGram2,
                               HeadKind::kGram3};

TEST(Heads, InTheOrderOfTheirLosses) {
  ModelConfig model;
  model.vocab_size = 10;
  EXPECT_EQ(HeadsOf(model), (std::vector<HeadKind>{HeadKind::kMain}));
  const ModelConfig all = AllHeads();
  EXPECT_EQ(HeadsOf(all), std::vector<HeadKind>(std::begin(kEvery), std::end(kEvery)));
  ModelConfig pairs;
  pairs.ngram_head.emplace();  // orders [2]
  EXPECT_EQ(HeadsOf(pairs), (std::vector<HeadKind>{HeadKind::kMain, HeadKind::kGram2}));
}

TEST(Heads, NamesReachClassesAndWeights) {
  const ModelConfig model = AllHeads();
  const char* names[] = {"main", "head2", "gram2", "gram3"};
  const int64_t reach[] = {1, 2, 2, 3}, classes[] = {10, 10, 997, 1001};
  const double weights[] = {1.0, 0.3, 0.2, 0.2};
  for (size_t i = 0; i < kHeadKinds; ++i) {
    EXPECT_STREQ(NameOf(kEvery[i]), names[i]);
    EXPECT_EQ(ReachOf(kEvery[i]), reach[i]);
    EXPECT_EQ(ClassesOf(model, kEvery[i]), classes[i]);
    EXPECT_EQ(LossWeightOf(model, kEvery[i]), weights[i]);
  }
}

TEST(Targets, WrapInsideTheirOwnWindow) {
  const ModelConfig model = AllHeads();
  const Windows windows = {4, {1, 2, 3, 4, 5, 6, 7, 8}, {0, 0, 1, 1, 0, 0, 0, 0}, {}};
  EXPECT_EQ(Targets(model, HeadKind::kMain, windows),
            (std::vector<uint32_t>{2, 3, 4, 1, 6, 7, 8, 5}));
  EXPECT_EQ(Targets(model, HeadKind::kSecondToken, windows),
            (std::vector<uint32_t>{3, 4, 1, 2, 7, 8, 5, 6}));
  EXPECT_EQ(Targets(model, HeadKind::kGram2, windows),
            (std::vector<uint32_t>{32, 43, 14, 21, 76, 87, 58, 65}));
  EXPECT_EQ(Targets(model, HeadKind::kGram3, windows),
            (std::vector<uint32_t>{432, 143, 214, 321, 876, 587, 658, 765}));
}

TEST(Targets, AreReducedByTheHeadsOwnModulus) {
  ModelConfig model = AllHeads();
  model.ngram_head->rows = 30;
  const Windows windows = {3, {1, 2, 3}, {0, 0, 0}, {}};
  EXPECT_EQ(Targets(model, HeadKind::kGram2, windows),
            (std::vector<uint32_t>{32 % 30, 13 % 30, 21 % 30}));
  EXPECT_EQ(Targets(model, HeadKind::kGram3, windows),
            (std::vector<uint32_t>{132 % 34, 213 % 34, 321 % 34}));
}

TEST(Targets, OfWindowsShorterThanTheReach) {
  const ModelConfig model = AllHeads();
  const Windows two = {2, {1, 2}, {0, 0}, {}}, one = {1, {4}, {0}, {}};
  EXPECT_EQ(Targets(model, HeadKind::kSecondToken, two), (std::vector<uint32_t>{1, 2}));
  EXPECT_EQ(Targets(model, HeadKind::kGram3, two), (std::vector<uint32_t>{212, 121}));
  EXPECT_EQ(Targets(model, HeadKind::kGram3, one), (std::vector<uint32_t>{444}));
}

TEST(TargetWeights, TheMainHeadTakesThemAsTheyAre) {
  const Windows windows = {3, {0, 0, 0}, {0, 1, 1}, {1, 0.5, 0.25}};
  EXPECT_EQ(Weights(HeadKind::kMain, windows, 1.75), windows.weights);
}

TEST(TargetWeights, StopAtTheWindowsEnd) {
  const Windows windows = {4, {0, 0, 0, 0}, {0, 0, 0, 0}, {1, 1, 1, 1}};
  EXPECT_EQ(Weights(HeadKind::kSecondToken, windows, 2), (std::vector<float>{1, 1, 0, 0}));
  EXPECT_EQ(Weights(HeadKind::kGram2, windows, 2), (std::vector<float>{1, 1, 0, 0}));
  EXPECT_EQ(Weights(HeadKind::kGram3, windows, 1), (std::vector<float>{1, 0, 0, 0}));
}

TEST(TargetWeights, StopAtDocumentBorders) {
  const std::vector<float> ones(8, 1.0f);
  const Windows windows = {8, std::vector<uint32_t>(8, 0), {0, 0, 0, 1, 1, 1, 1, 2}, ones};
  EXPECT_EQ(Weights(HeadKind::kSecondToken, windows, 3),
            (std::vector<float>{1, 0, 0, 1, 1, 0, 0, 0}));
  EXPECT_EQ(Weights(HeadKind::kGram3, windows, 1), (std::vector<float>{0, 0, 0, 1, 0, 0, 0, 0}));
}

TEST(TargetWeights, AreTheProductOfThePredictionsOnTheWay) {
  const Windows windows = {
      6, std::vector<uint32_t>(6, 0), std::vector<int32_t>(6, 0), {0.5, 0.5, 0, 1, 0.25, 0}};
  EXPECT_EQ(Weights(HeadKind::kSecondToken, windows, 0.5),
            (std::vector<float>{0.25, 0, 0, 0.25, 0, 0}));
  const Windows more = {
      6, std::vector<uint32_t>(6, 0), std::vector<int32_t>(6, 0), {0.5, 0.5, 0.5, 1, 0, 1}};
  EXPECT_EQ(Weights(HeadKind::kGram3, more, 0.375), (std::vector<float>{0.125, 0.25, 0, 0, 0, 0}));
}

TEST(TargetWeights, OfWindowsShorterThanTheReach) {
  const Windows two = {2, {1, 2}, {0, 0}, {1, 1}}, three = {3, {1, 2, 3}, {0, 0, 0}, {1, 1, 1}};
  EXPECT_EQ(Weights(HeadKind::kSecondToken, two, 0), (std::vector<float>{0, 0}));
  EXPECT_EQ(Weights(HeadKind::kGram3, two, 0), (std::vector<float>{0, 0}));
  EXPECT_EQ(Weights(HeadKind::kSecondToken, three, 1), (std::vector<float>{1, 0, 0}));
  EXPECT_EQ(Weights(HeadKind::kGram3, three, 0), (std::vector<float>{0, 0, 0}));
}

// The definition, one position at a time, with every read and border written out.
TEST(TargetWeights, EqualTheDefinitionOnRandomWindows) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 200; ++trial) {
    const int64_t length = 1 + random() % 12;
    Windows windows = {length, {}, {}, {}};
    for (int64_t b = 0; b < 3; ++b) {
      int32_t segment = 0;
      for (int64_t t = 0; t < length; ++t) {
        segment += random() % 4 == 0 ? 1 : 0;
        windows.tokens.push_back(random() % 10);
        windows.segments.push_back(segment);
        windows.weights.push_back(static_cast<float>(random() % 3) / 2);
      }
    }
    for (const HeadKind kind : kEvery) {
      const int64_t reach = ReachOf(kind);
      std::vector<float> expected;
      double sum = 0;
      for (int64_t i = 0; i < 3 * length; ++i) {
        const int64_t t = i % length;
        float w = windows.weights[static_cast<size_t>(i)];
        if (kind != HeadKind::kMain) {
          for (int64_t j = 1; j <= reach; ++j) {
            if (t + j >= length) {
              w = 0;
              break;
            }
            const size_t at = static_cast<size_t>(i + j);
            if (windows.segments[at] != windows.segments[static_cast<size_t>(i)]) w = 0;
            if (j < reach) w *= windows.weights[at];
          }
        }
        expected.push_back(w);
        sum += w;
      }
      EXPECT_EQ(Weights(kind, windows, sum), expected) << NameOf(kind) << " of " << length;
    }
  }
}

}  // namespace
}  // namespace overtok
