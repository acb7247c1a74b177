// Shares of candidate sets: together they are the sets, each class at its holder; targets; on one
// part the sets' own memory; how evenly parts divide real-looking text; and the sampled loss on
// several ranks against one, with a block that overflows.
#include "losses/candidate_shard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "core/ops/embedding.h"
#include "losses/linear_cross_entropy.h"
#include "tests/losses/candidate_support.h"
#include "tests/losses/head_reference.h"
#include "tests/support/thread_ranks.h"

namespace overtok {
namespace {

using testing::BuiltSets;
using testing::Distance;
using testing::HeadProblem;
using testing::Ids;
using testing::RunOnRanks;

std::vector<uint32_t> RandomLabels(int64_t count, int64_t classes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint32_t> labels;
  for (int64_t i = 0; i < count; ++i)
    labels.push_back(static_cast<uint32_t>(random() % static_cast<uint64_t>(classes)));
  return labels;
}

template <class T>
std::vector<T> Values(const Tensor& x) {
  const T* data = x.data<T>();
  return {data, data + x.elements()};
}

// What the shares of all parts promise together, block by block.
void CheckShares(const BuiltSets& built, const std::vector<uint32_t>& labels, Split split,
                 int64_t parts, int64_t classes, int64_t most) {
  const auto blocks = static_cast<int64_t>(built->sets().size());
  const auto count = static_cast<int64_t>(labels.size());
  std::vector<std::vector<uint32_t>> together(static_cast<size_t>(blocks));
  std::vector<int64_t> largest(static_cast<size_t>(blocks)), said(static_cast<size_t>(blocks));
  std::vector<int> claimed(labels.size());
  for (int64_t part = 0; part < parts; ++part) {
    const Sharding mine = {split, parts, part};
    Memory memory(Memory::Mode::kReal);
    CandidateShares shares(mine, classes, count, blocks, most, &memory);
    shares.Build(*built.operator->(), labels);
    const std::vector<uint32_t> targets = Values<uint32_t>(shares.targets());
    ASSERT_EQ(targets.size(), labels.size());
    for (size_t b = 0; b < shares.shares().size(); ++b) {
      const CandidateShare& share = shares.shares()[b];
      const CandidateSet& set = built->sets()[b];
      const size_t per_block = labels.size() / static_cast<size_t>(blocks);
      const auto placed = [&](size_t i) {
        return PartOf(mine, classes, labels[i]) == part
                   ? static_cast<uint32_t>(LocalOf(mine, classes, labels[i]))
                   : kNoRow;
      };
      if (set.overflow) {
        EXPECT_FALSE(share.ids.defined());
        EXPECT_EQ(share.most, LargestPart(mine, classes));
        for (size_t i = b * per_block; i < (b + 1) * per_block; ++i) {
          ASSERT_EQ(targets[i], placed(i));
          claimed[i] += targets[i] != kNoRow ? 1 : 0;
        }
        continue;
      }
      const auto ids = Values<uint32_t>(share.ids), rows = Values<uint32_t>(share.rows);
      ASSERT_EQ(ids.size(), rows.size());
      ASSERT_TRUE(std::is_sorted(ids.begin(), ids.end()));
      ASSERT_EQ(share.bias.defined(), set.bias.defined());
      const std::vector<uint32_t> all = Ids(set);
      for (size_t k = 0; k < ids.size(); ++k) {
        ASSERT_EQ(PartOf(mine, classes, ids[k]), part);
        ASSERT_EQ(LocalOf(mine, classes, ids[k]), rows[k]);
        if (!set.bias.defined()) continue;
        const auto at = std::lower_bound(all.begin(), all.end(), ids[k]) - all.begin();
        ASSERT_EQ(share.bias.data<float>()[k], set.bias.data<float>()[at]);
      }
      together[b].insert(together[b].end(), ids.begin(), ids.end());
      largest[b] = std::max(largest[b], share.ids.elements());
      EXPECT_TRUE(part == 0 || said[b] == share.most);
      said[b] = share.most;
      for (size_t i = b * per_block; i < (b + 1) * per_block; ++i) {
        ASSERT_EQ(targets[i] == kNoRow, placed(i) == kNoRow);
        if (targets[i] == kNoRow) continue;
        ASSERT_EQ(ids.at(targets[i]), labels[i]);
        ++claimed[i];
      }
    }
  }
  for (size_t b = 0; b < together.size(); ++b) {
    if (built->sets()[b].overflow) continue;
    std::sort(together[b].begin(), together[b].end());
    EXPECT_EQ(together[b], Ids(built->sets()[b]));
    EXPECT_EQ(largest[b], said[b]);
  }
  for (const int ranks : claimed) ASSERT_EQ(ranks, 1);
}

TEST(CandidateShares, AreTheSetsDivided) {
  int overflows = 0, full = 0;
  for (const int64_t classes : {5, 101, 1'000}) {
    for (const int64_t candidates : {std::min<int64_t>(classes, 40), classes * 2 / 3, classes}) {
      for (const Correction correction : {Correction::kNone, Correction::kInclusion}) {
        // Blocks of 60 labels; the first has few distinct ones.
        std::vector<uint32_t> labels = RandomLabels(180, classes, 7);
        for (size_t i = 0; i < 60; ++i) labels[i] = static_cast<uint32_t>(i % 3);
        const BuiltSets built({.classes = classes,
                               .correction = correction,
                               .negatives = Negatives::kSweep,
                               .seed = 1,
                               .head = "main"},
                              labels, 3, candidates, 4);
        for (const CandidateSet& set : built->sets()) {
          overflows += set.overflow ? 1 : 0;
          full += set.every_class ? 1 : 0;
        }
        for (const Split split : {Split::kBlocks, Split::kRows, Split::kScattered}) {
          for (const int64_t parts : {1, 2, 3, 4, 7}) {
            CheckShares(built, labels, split, parts, classes, candidates);
          }
        }
      }
    }
  }
  EXPECT_GT(overflows, 0);
  EXPECT_GT(full, 0);
}

TEST(CandidateShares, OnePartIsTheSetsThemselves) {
  const std::vector<uint32_t> labels = RandomLabels(64, 1'000, 1);
  const BuiltSets built({.classes = 1'000,
                         .correction = Correction::kInclusion,
                         .negatives = Negatives::kSweep,
                         .seed = 1,
                         .head = "main"},
                        labels, 2, 100, 0);
  for (const Split split : {Split::kWhole, Split::kBlocks, Split::kRows, Split::kScattered}) {
    Memory memory(Memory::Mode::kReal);
    CandidateShares shares({split, 1, 0}, 1'000, 64, 2, 100, &memory);
    shares.Build(*built.operator->(), labels);
    EXPECT_EQ(memory.total(), 0);
    EXPECT_EQ(shares.targets().raw(), built->ranks().raw());
    for (size_t b = 0; b < 2; ++b) {
      EXPECT_EQ(shares.shares()[b].ids.raw(), built->sets()[b].ids.raw());
      EXPECT_EQ(shares.shares()[b].rows.raw(), built->sets()[b].ids.raw());
      EXPECT_EQ(shares.shares()[b].bias.raw(), built->sets()[b].bias.raw());
      EXPECT_EQ(shares.shares()[b].most, 100);
    }
  }
}

TEST(CandidateShares, FewerLabelsThanTheyWereMadeFor) {
  const std::vector<uint32_t> labels = RandomLabels(64, 300, 1);
  BuiltSets built({.classes = 300, .seed = 1, .head = "main"}, labels, 4, 50, 0);
  Memory memory(Memory::Mode::kReal);
  CandidateShares shares({Split::kBlocks, 2, 1}, 300, 64, 4, 50, &memory);
  built->Build(std::span(labels).first(32), 40, 1);
  shares.Build(*built.operator->(), std::span(labels).first(32));
  EXPECT_EQ(shares.shares().size(), 2U);
  EXPECT_EQ(shares.targets().elements(), 32);
}

// Ids of a tokenizer are about in the order of their frequency: contiguous ranges give the first
// part nearly all labels of a block; blocks dealt round do not.
TEST(CandidateShares, BlocksDealtRoundAreEvenOnZipfsText) {
  const int64_t classes = 128'256, candidates = 24'576, parts = 8;
  const size_t positions = 32 * 4'096;
  std::vector<double> upto(static_cast<size_t>(classes));
  double sum = 0;
  for (size_t c = 0; c < upto.size(); ++c)
    upto[c] = sum += std::pow(static_cast<double>(c + 3), -1.22);
  for (const uint64_t seed : {1U, 2U}) {
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<double> uniform(0, sum);
    std::vector<uint32_t> labels;
    for (size_t i = 0; i < 2 * positions; ++i) {
      const auto at = std::upper_bound(upto.begin(), upto.end() - 1, uniform(random));
      labels.push_back(static_cast<uint32_t>(at - upto.begin()));
    }
    const CandidateOptions options = {.classes = classes,
                                      .correction = Correction::kNone,
                                      .negatives = Negatives::kSweep,
                                      .seed = seed,
                                      .head = "main"};
    const BuiltSets built(options, labels, 2, candidates, 0);
    // As published for such blocks (docs/methods/sampled_softmax.md): 16,950.
    for (const CandidateSet& set : built->sets()) {
      EXPECT_TRUE(set.present > 14'000 && set.present < 20'000) << set.present;
    }
    const auto busiest = [&](Split split) {
      return BusiestShare(labels, /*blocks=*/2, candidates, options, {split, parts, 0});
    };
    const double blocks = busiest(Split::kBlocks), scattered = busiest(Split::kScattered);
    const double rows = busiest(Split::kRows);
    EXPECT_TRUE(blocks >= 1 && blocks <= 1.05) << blocks;
    EXPECT_TRUE(scattered >= 1 && scattered <= 1.05) << scattered;
    EXPECT_TRUE(rows > 1.5) << rows;
    if (seed == 1) {
      RecordProperty("blocks", std::to_string(blocks));
      RecordProperty("scattered", std::to_string(scattered));
      RecordProperty("contiguous", std::to_string(rows));
    }
  }
}

TEST(CandidateShares, TheMeasureCountsByHand) {
  // Classes 0 to 5 over 2 ranges: 2 candidates and 1; an overflow: 3 and 3.
  const std::vector<uint32_t> labels = {0, 1, 5, 0, 0, 1, 2, 3};
  const CandidateOptions options = {.classes = 6, .seed = 1, .head = "main"};
  EXPECT_EQ(BusiestShare(labels, 2, 3, options, {Split::kRows, 2, 0}), 5.0 / 4.5);
  EXPECT_EQ(BusiestShare(labels, 2, 3, options, {}), 1);
}

// Two blocks of labels, one of which overflows, as a head runs them: each block over the rank's
// share of its candidates, or over the rank's part of all classes.
struct Sampled {
  LossSums sums[2];
  std::vector<float> dh, dw;  // of all ranks
};

Sampled RunSampled(const HeadProblem& p, const CandidateOptions& options, int64_t candidates,
                   int ranks, Split split) {
  Sampled out;
  out.dh.assign(p.h.size(), 0);
  out.dw.assign(p.w.size(), 0);
  std::vector<std::vector<float>> parts(static_cast<size_t>(ranks));
  RunOnRanks(ranks, [&](Communicator& world) {
    const Sharding mine = {split, ranks, world.rank()};
    const int64_t d = p.hidden, n = SizeOfPart(mine, p.classes), tokens = p.tokens / 2;
    const BuiltSets built(options, p.targets, 2, candidates, 3);
    Memory memory(Memory::Mode::kReal);
    Context context = CpuContext();
    CandidateShares shares(mine, p.classes, p.tokens, 2, candidates, &memory);
    LinearCrossEntropy head(&memory, p.tokens, d, LargestPart(mine, p.classes), DType::kF32, &world,
                            /*tile_bytes=*/4);
    memory.Commit(&context);
    shares.Build(*built.operator->(), p.targets);
    std::vector<float> h = p.h, loss_weight = p.weight, gradient_weight = p.gradient_weight;
    std::vector<float>& dh = parts[static_cast<size_t>(world.rank())];
    dh.resize(h.size());
    for (int64_t b = 0; b < 2; ++b) {
      const CandidateShare& share = shares.shares()[static_cast<size_t>(b)];
      std::vector<uint32_t> ids;
      if (share.ids.defined()) {
        ids = Values<uint32_t>(share.ids);
      } else {
        for (int64_t i = 0; i < n; ++i)
          ids.push_back(static_cast<uint32_t>(GlobalOf(mine, p.classes, i)));
      }
      const auto count = static_cast<int64_t>(ids.size());
      std::vector<float> w, dw(ids.size() * static_cast<size_t>(d), NAN);
      for (const uint32_t id : ids) w.insert(w.end(), &p.w[id * d], &p.w[id * d] + d);
      const auto rows = [&](std::vector<float>& x, int64_t width) {
        return Tensor(x.data() + b * tokens * width, {tokens, width});
      };
      const auto row = [&](std::vector<float>& x) { return rows(x, 1).Reshape({tokens}); };
      LinearCrossEntropyArgs args;
      args.hidden = rows(h, d);
      args.weight = Tensor(w.data(), {count, d});
      args.bias = share.bias;
      args.targets = shares.targets().Rows(b * tokens, tokens);
      args.loss_weight = row(loss_weight);
      args.gradient_weight = row(gradient_weight);
      args.d_hidden = rows(dh, d);
      args.d_weight = Tensor(dw.data(), {count, d});
      const LossSums sums = head.RunAndRead(context, args, share.most);
      if (world.rank() == 0) out.sums[b] = sums;
      for (size_t k = 0; k < ids.size(); ++k) {  // rows of this rank alone
        for (int64_t i = 0; i < d; ++i)
          out.dw[static_cast<size_t>(ids[k] * d + i)] +=
              dw[k * static_cast<size_t>(d) + static_cast<size_t>(i)];
      }
    }
  });
  for (const std::vector<float>& part : parts) {
    for (size_t i = 0; i < part.size(); ++i) out.dh[i] += part[i];
  }
  return out;
}

TEST(CandidateShares, TheSampledLossIsThatOfOneRank) {
  HeadProblem p(300, 5, 501, 1.0F);
  // The second block of 150 labels has few distinct ones, the first more than P.
  for (size_t t = 150; t < 300; ++t) p.targets[t] %= 40;
  for (const Correction correction : {Correction::kNone, Correction::kInclusion}) {
    const CandidateOptions options = {.classes = 501,
                                      .correction = correction,
                                      .negatives = Negatives::kSweep,
                                      .seed = 2,
                                      .head = "main"};
    const BuiltSets built(options, p.targets, 2, 70, 3);
    ASSERT_TRUE(built->sets()[0].overflow && !built->sets()[1].overflow);
    const Sampled one = RunSampled(p, options, 70, 1, Split::kBlocks);
    for (const int ranks : {2, 3, 4}) {
      for (const Split split : {Split::kBlocks, Split::kRows, Split::kScattered}) {
        const Sampled many = RunSampled(p, options, 70, ranks, split);
        // As for the full softmax: fp32 numbers in another order.
        for (size_t b = 0; b < 2; ++b) {
          EXPECT_TRUE(std::abs(many.sums[b].loss / one.sums[b].loss - 1) <= 1e-6);
          EXPECT_EQ(many.sums[b].weight, one.sums[b].weight);
        }
        EXPECT_TRUE(Distance(many.dh, {one.dh.begin(), one.dh.end()}) <= 1e-6);
        EXPECT_TRUE(Distance(many.dw, {one.dw.begin(), one.dw.end()}) <= 1e-6);
      }
    }
  }
}

}  // namespace
}  // namespace overtok
