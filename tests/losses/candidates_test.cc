// Candidate sets against ordered sets and a literal walk of the sweep; published constants;
// offsets; overflow and the other edges; ranks.
#include "losses/candidates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "core/memory.h"
#include "tests/losses/candidate_support.h"

namespace overtok {
namespace {

using testing::BuiltSets;
using testing::Ids;

TEST(SweepStride, PublishedVocabularies) {
  EXPECT_EQ(SweepStride(128'256), 79'267U);
  EXPECT_EQ(SweepStride(12'800'000), 7'910'837U);
}

TEST(SweepStride, IsOddCoprimeAndVisitsEveryClass) {
  for (uint64_t classes = 1; classes <= 400; ++classes) {
    const uint64_t stride = SweepStride(classes);
    EXPECT_EQ(stride % 2, 1U) << classes;
    EXPECT_GE(stride, static_cast<uint64_t>(static_cast<double>(classes) * 0.6180339887498949));
    std::vector<bool> seen(classes);
    for (uint64_t k = 0; k < classes; ++k) seen[k * stride % classes] = true;
    EXPECT_EQ(std::count(seen.begin(), seen.end(), true), static_cast<int64_t>(classes));
  }
}

TEST(Stages, EndsOfThePublishedRuns) {
  const std::vector<SampledStage> stages = {{0.57, 24'576}, {0.81, 36'864}, {0.93, 65'536}};
  const std::map<int64_t, std::vector<int64_t>> ends = {{4'959, {2'827, 4'017, 4'612}},
                                                        {11'444, {6'523, 9'270, 10'643}},
                                                        {9'918, {5'653, 8'034, 9'224}},
                                                        {22'888, {13'046, 18'539, 21'286}}};
  for (const auto& [steps, expected] : ends) {
    for (size_t i = 0; i < stages.size(); ++i) {
      EXPECT_EQ(StageEnd(stages[i], steps), expected[i]) << steps;
      const int64_t next = i + 1 < stages.size() ? stages[i + 1].candidates : 128'256;
      EXPECT_EQ(StageCandidates(stages, 128'256, steps, expected[i] - 1), stages[i].candidates);
      EXPECT_EQ(StageCandidates(stages, 128'256, steps, expected[i]), next);
    }
    EXPECT_EQ(StageCandidates(stages, 128'256, steps, 0), 24'576);
  }
}

TEST(Stages, HalvesRoundToEven) {
  EXPECT_EQ(StageEnd({0.5, 1}, 5), 2);
  EXPECT_EQ(StageEnd({0.5, 1}, 7), 4);
  EXPECT_EQ(StageEnd({1.0, 1}, 7), 7);
  EXPECT_EQ(StageCandidates({{1.0, 3}}, 9, 7, 6), 3);  // until 1: never the full softmax
  EXPECT_EQ(StageCandidates({}, 9, 7, 0), 9);
}

TEST(InclusionCorrection, PublishedWeights) {
  // 16,950 distinct targets in a block of 32 windows of 4,096; figures to two digits.
  EXPECT_TRUE(std::abs(InclusionCorrection(128'256, 24'576, 16'950) - 2.68) <= 0.005);
  EXPECT_TRUE(std::abs(InclusionCorrection(128'256, 36'864, 16'950) - 1.72) <= 0.005);
  EXPECT_TRUE(std::abs(InclusionCorrection(128'256, 65'536, 16'950) - 0.83) <= 0.005);
  EXPECT_EQ(InclusionCorrection(128'256, 128'256, 16'950), 0);
  EXPECT_EQ(InclusionCorrection(10, 4, 4), 0);
}

// The published rule, word for word: labels, then absent classes from the offset on.
std::vector<uint32_t> Walk(const std::vector<uint32_t>& labels, uint64_t classes, int64_t wanted,
                           uint64_t offset) {
  std::set<uint32_t> chosen(labels.begin(), labels.end());
  const uint64_t stride = SweepStride(classes);
  for (uint64_t j = 0; static_cast<int64_t>(chosen.size()) < wanted; ++j) {
    chosen.insert(static_cast<uint32_t>((offset + j) % classes * stride % classes));
  }
  return {chosen.begin(), chosen.end()};
}

// Everything a set promises, whatever its negatives.
void CheckSet(const CandidateSet& set, const std::vector<uint32_t>& labels, const uint32_t* ranks,
              int64_t classes, int64_t wanted, Correction correction) {
  const std::set<uint32_t> present(labels.begin(), labels.end());
  const auto distinct = static_cast<int64_t>(present.size());
  ASSERT_EQ(set.present, distinct);
  ASSERT_EQ(set.overflow, distinct > wanted);
  ASSERT_EQ(set.every_class, wanted == classes);
  if (set.overflow) {
    ASSERT_FALSE(set.ids.defined());
    ASSERT_TRUE(std::equal(labels.begin(), labels.end(), ranks));
    return;
  }
  const std::vector<uint32_t> ids = Ids(set);
  ASSERT_EQ(static_cast<int64_t>(ids.size()), wanted);
  ASSERT_LT(ids.back(), classes);
  // Strictly ascending: no class twice.
  ASSERT_EQ(std::adjacent_find(ids.begin(), ids.end(), std::greater_equal<>()), ids.end());
  for (size_t i = 0; i < labels.size(); ++i) ASSERT_EQ(ids.at(ranks[i]), labels[i]);

  const bool weighted =
      correction == Correction::kInclusion && distinct < wanted && wanted < classes;
  ASSERT_EQ(set.bias.defined(), weighted);
  const double weight = weighted ? std::log(static_cast<double>(classes - distinct) /
                                            static_cast<double>(wanted - distinct))
                                 : 0.0;
  ASSERT_EQ(set.correction, weight);
  for (size_t i = 0; weighted && i < ids.size(); ++i) {
    const float expected = present.count(ids[i]) != 0 ? 0.0F : static_cast<float>(weight);
    ASSERT_EQ(set.bias.data<float>()[i], expected) << i;
  }
}

TEST(CandidateSets, RandomProblemsAgreeWithOrderedSets) {
  std::mt19937_64 random(1);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  int overflows = 0, exact = 0, full = 0, walked = 0;
  for (int round = 0; round < 600; ++round) {
    const int64_t classes = 1 + below(round % 3 == 0 ? 9 : 700);
    const int64_t blocks = 1 + below(4), length = 1 + below(120);
    const int64_t range = 1 + below(classes);  // labels from few classes, or from all
    std::vector<uint32_t> labels(static_cast<size_t>(blocks * length));
    for (uint32_t& label : labels) label = static_cast<uint32_t>(below(range));
    // P = T of the first block, P = V, or anything.
    const std::set<uint32_t> first(labels.begin(), labels.begin() + length);
    const int64_t wanted = round % 5 == 0   ? static_cast<int64_t>(first.size())
                           : round % 5 == 1 ? classes
                                            : 1 + below(classes);
    for (const Negatives negatives : {Negatives::kSweep, Negatives::kUniform}) {
      for (const Correction correction : {Correction::kNone, Correction::kInclusion}) {
        const CandidateOptions options = {.classes = classes,
                                          .correction = correction,
                                          .negatives = negatives,
                                          .seed = static_cast<uint64_t>(round),
                                          .head = "main"};
        BuiltSets built(options, labels, blocks, wanted, /*step=*/round);
        ASSERT_EQ(static_cast<int64_t>(built->sets().size()), blocks);
        ASSERT_EQ(built->candidates(), wanted);
        for (int64_t b = 0; b < blocks; ++b) {
          const CandidateSet& set = built->sets()[static_cast<size_t>(b)];
          const std::vector<uint32_t> own(labels.begin() + b * length,
                                          labels.begin() + (b + 1) * length);
          SCOPED_TRACE(::testing::Message() << "V " << classes << " P " << wanted << " block " << b
                                            << " round " << round);
          ASSERT_NO_FATAL_FAILURE(CheckSet(set, own, built->ranks().data<uint32_t>() + b * length,
                                           classes, wanted, correction));
          overflows += set.overflow ? 1 : 0;
          exact += set.present == wanted ? 1 : 0;
          full += set.every_class ? 1 : 0;
          if (set.overflow || negatives != Negatives::kSweep) continue;
          ASSERT_LT(set.offset, static_cast<uint64_t>(classes));
          ASSERT_EQ(Ids(set), Walk(own, static_cast<uint64_t>(classes), wanted, set.offset));
          ++walked;
        }
      }
    }
  }
  // Else this was no test of them.
  EXPECT_GT(overflows, 500);
  EXPECT_GT(exact, 500);
  EXPECT_GT(full, 500);
  EXPECT_GT(walked, 1'000);
}

TEST(CandidateSets, RealVocabulary) {
  const int64_t classes = 128'256, length = 4'096;
  std::mt19937_64 random(7);
  std::vector<uint32_t> labels(2 * length);
  for (uint32_t& label : labels) {  // Zipf-like: many repeats of few classes
    const double u = static_cast<double>(random() >> 11) * 0x1p-53;
    label = static_cast<uint32_t>(std::pow(static_cast<double>(classes), u)) - 1;
  }
  const CandidateOptions options = {
      .classes = classes, .correction = Correction::kInclusion, .seed = 3, .head = "main"};
  BuiltSets built(options, labels, 2, 24'576, 100);
  for (int64_t b = 0; b < 2; ++b) {
    const std::vector<uint32_t> own(labels.begin() + b * length, labels.begin() + (b + 1) * length);
    const CandidateSet& set = built->sets()[static_cast<size_t>(b)];
    ASSERT_NO_FATAL_FAILURE(CheckSet(set, own, built->ranks().data<uint32_t>() + b * length,
                                     classes, 24'576, Correction::kInclusion));
    EXPECT_EQ(Ids(set), Walk(own, classes, 24'576, set.offset));
  }
  const uint64_t stagger = (built->sets()[1].offset + classes - built->sets()[0].offset) % classes;
  EXPECT_EQ(stagger, static_cast<uint64_t>(classes / 2));
}

TEST(CandidateSets, ARebuildLeavesNothingBehind) {
  const CandidateOptions options = {.classes = 130, .seed = 1, .head = "main"};
  const std::vector<uint32_t> crowded = {1, 2, 3, 4, 5, 6, 129, 64}, single(8, 70);
  BuiltSets used(options, crowded, 2, 100, 5);
  used->Build(single, 9, 6);
  const BuiltSets fresh(options, single, 2, 9, 6);
  for (size_t b = 0; b < 2; ++b) EXPECT_EQ(Ids(used->sets()[b]), Ids(fresh->sets()[b]));
  // Fewer windows than the sets were made for: fewer blocks, each as long as before.
  used->Build(std::span(single).first(4), 9, 6);
  EXPECT_EQ(used->sets().size(), 1U);
}

TEST(SweepOffset, BlocksAreStaggeredByEqualShares) {
  for (const int64_t blocks : {1, 3, 4, 128}) {
    const uint64_t classes = 1'003, share = classes / static_cast<uint64_t>(blocks);
    const uint64_t first = SweepOffset(5, "main", 17, classes, 0, blocks);
    for (int64_t b = 0; b < blocks; ++b) {
      EXPECT_EQ(SweepOffset(5, "main", 17, classes, b, blocks),
                (first + static_cast<uint64_t>(b) * share) % classes);
    }
  }
}

TEST(SweepOffset, DependsOnSeedHeadAndStepAndOnNothingElse) {
  const auto at = [](uint64_t seed, const char* head, int64_t step) {
    return SweepOffset(seed, head, step, 128'256, 0, 4);
  };
  EXPECT_EQ(at(1, "main", 9), at(1, "main", 9));
  int same_head = 0, same_seed = 0, same_step = 0;
  for (int64_t step = 0; step < 1'000; ++step) {
    same_head += at(1, "main", step) == at(1, "head2", step) ? 1 : 0;
    same_seed += at(1, "main", step) == at(2, "main", step) ? 1 : 0;
    same_step += at(1, "main", step) == at(1, "main", step + 1) ? 1 : 0;
  }
  // By chance one pair in 128,256 agrees.
  EXPECT_LE(same_head + same_seed + same_step, 2);
}

TEST(SweepOffset, IsUniformOverSteps) {
  const uint64_t classes = 1'000;
  const int bins = 100, steps = 50'000;
  std::vector<double> count(bins);
  for (int64_t step = 0; step < steps; ++step) {
    ++count[SweepOffset(11, "main", step, classes, 0, 1) * bins / classes];
  }
  double chi_square = 0;
  for (const double n : count) chi_square += (n - 500) * (n - 500) / 500;
  // 99 degrees of freedom: mean 99, standard deviation 14.1; four of those either way.
  EXPECT_TRUE(chi_square > 43 && chi_square < 155) << chi_square;
}

TEST(UniformNegatives, EveryAbsentClassIsAsLikely) {
  // 5 labels of 40; 6 negatives drawn, then 6 left out.
  for (const int64_t wanted : {11, 34}) {
    const int64_t classes = 40, blocks = 500, steps = 20;
    const std::vector<uint32_t> block = {0, 7, 7, 39, 20, 21};
    std::vector<uint32_t> labels;
    for (int64_t b = 0; b < blocks; ++b) labels.insert(labels.end(), block.begin(), block.end());
    const CandidateOptions options = {
        .classes = classes, .negatives = Negatives::kUniform, .seed = 2, .head = "main"};
    BuiltSets built(options, labels, blocks, wanted, 0);
    std::vector<double> count(static_cast<size_t>(classes));
    std::set<std::vector<uint32_t>> distinct;
    for (int64_t step = 0; step < steps; ++step) {
      built->Build(labels, wanted, step);
      for (const CandidateSet& set : built->sets()) {
        for (const uint32_t id : Ids(set)) ++count[id];
        distinct.insert(Ids(set));
      }
    }
    const double draws = static_cast<double>(blocks * steps);
    const double pi = static_cast<double>(wanted - 5) / 35;
    double chi_square = 0;
    for (size_t c = 0; c < count.size(); ++c) {
      if (std::find(block.begin(), block.end(), c) != block.end()) {
        EXPECT_EQ(count[c], draws);
      } else {
        chi_square += std::pow(count[c] - draws * pi, 2) / (draws * pi * (1 - pi));
      }
    }
    // Near 35 with a standard deviation of 8.4; four of those.
    EXPECT_TRUE(chi_square < 69) << chi_square;
    // 1.6 million sets of 6 of 35: draws of different steps and blocks are different.
    EXPECT_GT(distinct.size(), 9'900U);
  }
}

TEST(UniformNegatives, AreAFunctionOfSeedHeadStepAndBlock) {
  const std::vector<uint32_t> labels(64, 3);
  CandidateOptions options = {
      .classes = 500, .negatives = Negatives::kUniform, .seed = 2, .head = "main"};
  const auto ids = [&](int64_t step, size_t block) {
    return Ids(BuiltSets(options, labels, 4, 40, step)->sets()[block]);
  };
  const std::vector<uint32_t> reference = ids(8, 1);
  EXPECT_EQ(ids(8, 1), reference);
  EXPECT_NE(ids(8, 2), reference);
  EXPECT_NE(ids(9, 1), reference);
  options.head = "head2";
  EXPECT_NE(ids(8, 1), reference);
  options.head = "main";
  options.seed = 3;
  EXPECT_NE(ids(8, 1), reference);
}

TEST(CandidateSets, TheMemoryPlanCountsWhatARunTakes) {
  const CandidateOptions options = {
      .classes = 1'000, .correction = Correction::kInclusion, .seed = 1, .head = "main"};
  Memory real(Memory::Mode::kReal), dry(Memory::Mode::kDry);
  const CandidateSets a(options, 64, 4, 100, &real);
  const CandidateSets b(options, 64, 4, 100, &dry);
  // ids and bias of 4 sets, ranks, two bitmaps of 16 words and their counts.
  EXPECT_EQ(real.total(), 2 * 4 * 100 * 4 + 64 * 4 + 16 * (8 + 8 + 4));
  EXPECT_EQ(dry.total(), real.total());
}

}  // namespace
}  // namespace overtok
