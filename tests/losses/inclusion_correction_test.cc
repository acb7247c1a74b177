// What the inclusion correction promises: Z_hat, the sum over candidates with the log weight on
// negatives, averages to Z, the sum over all classes; and training to the optimum on sampled losses
// ends at log p with it, at log p - log(inclusion probability) without. Prints what it measured.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "tests/losses/candidate_support.h"

namespace overtok {
namespace {

using testing::BuiltSets;
using testing::Ids;

struct Estimate {
  double mean = 0, error = 0;  // of Z_hat / Z over batches, and its standard error
  double batch_deviation = 0;  // standard deviation over batches of a batch's mean Z_hat / Z
  double jensen = 0;           // mean of log(Z_hat / Z) over all sets
};

// Z_hat / Z over `batches` batches of 64 random labels, each with `blocks` sets.
Estimate Measure(int64_t classes, int64_t candidates, Correction correction, Negatives negatives,
                 int64_t batches, int64_t blocks) {
  std::mt19937_64 random(6);
  std::normal_distribution<double> normal(0, 1.5);
  std::vector<double> e(static_cast<size_t>(classes));
  double z = 0;
  for (double& x : e) z += x = std::exp(normal(random));

  std::vector<uint32_t> labels(static_cast<size_t>(blocks * 64));
  BuiltSets built({.classes = classes,
                   .correction = correction,
                   .negatives = negatives,
                   .seed = 8,
                   .head = "main"},
                  labels, blocks, candidates, 0);
  Estimate out;
  double squares = 0;
  for (int64_t batch = 0; batch < batches; ++batch) {
    for (size_t i = 0; i < labels.size(); ++i) {
      labels[i] = i < 64 ? static_cast<uint32_t>(random() % static_cast<uint64_t>(classes))
                         : labels[i - 64];
    }
    built->Build(labels, candidates, batch);
    double batch_mean = 0;
    for (const CandidateSet& set : built->sets()) {
      const auto* ids = set.ids.data<uint32_t>();
      double sum = 0;
      for (int64_t k = 0; k < candidates; ++k) {
        const double bias =
            set.bias.defined() ? static_cast<double>(set.bias.data<float>()[k]) : 0.0;
        sum += e[ids[k]] * (bias == 0 ? 1 : std::exp(bias));
      }
      batch_mean += sum / z / static_cast<double>(blocks);
      out.jensen += std::log(sum / z) / static_cast<double>(blocks * batches);
    }
    out.mean += batch_mean / static_cast<double>(batches);
    squares += batch_mean * batch_mean / static_cast<double>(batches);
  }
  out.batch_deviation = std::sqrt(std::max(0.0, squares - out.mean * out.mean));
  out.error = out.batch_deviation / std::sqrt(static_cast<double>(batches - 1));
  std::printf("  Z_hat/Z %.5f +- %.5f, a batch deviates by %.4f, mean log %.5f\n", out.mean,
              out.error, out.batch_deviation, out.jensen);
  return out;
}

// Labels are uniform, so that the sweep treats every class alike over batches and offsets; as many
// blocks as classes put one set at every offset.
TEST(InclusionCorrection, NormaliserIsUnbiasedOverAllOffsetsOfTheSweep) {
  const Estimate with = Measure(1'009, 300, Correction::kInclusion, Negatives::kSweep, 120, 1'009);
  EXPECT_TRUE(std::abs(with.mean - 1) <= 2 * with.error);
  EXPECT_TRUE(with.error < 0.01);
  EXPECT_TRUE(with.jensen < 0 && with.jensen > -0.05);
  const Estimate without = Measure(1'009, 300, Correction::kNone, Negatives::kSweep, 3, 1'009);
  EXPECT_TRUE(std::abs(without.mean - 1) > 0.5);
}

TEST(InclusionCorrection, NormaliserIsUnbiasedForUniformNegatives) {
  const Estimate with = Measure(1'009, 300, Correction::kInclusion, Negatives::kUniform, 200, 20);
  EXPECT_TRUE(std::abs(with.mean - 1) <= 2 * with.error);
  EXPECT_TRUE(with.error < 0.01);
  EXPECT_TRUE(with.jensen < 0 && with.jensen > -0.05);
}

struct Stationary {
  double excess = 0;             // full-softmax loss above the entropy of p
  double predicted_excess = 0;   // log sum p / pi - sum p log(1 / pi)
  std::vector<double> measured;  // mean of z - log p, less that of the most frequent band
  std::vector<double> expected;  // the same of log(1 / pi)
};

// Trains one logit a class (no model) on labels with Zipf frequencies to the stationary point.
Stationary Train(Correction correction, int64_t candidates) {
  const int64_t classes = 2'000, batch = 1'000, steps = 16'000;
  const std::vector<int64_t> borders = {0, 30, 150, 300, 600, 1'000, 2'000};  // bands
  const auto n = static_cast<size_t>(classes);
  std::vector<double> p(n), cumulative(n), z(n), mean_z(n), inclusion(n);
  double total = 0;
  for (size_t c = 0; c < n; ++c) total += p[c] = std::pow(static_cast<double>(c + 1), -1.1);
  double running = 0;
  for (size_t c = 0; c < n; ++c) {
    p[c] /= total;
    cumulative[c] = running += p[c];
    z[c] = std::log(p[c]);
  }
  // Inverse of the distribution function at 2^16 points: probabilities are these counts.
  std::vector<uint32_t> inverse(1 << 16);
  std::fill(p.begin(), p.end(), 0.0);
  for (size_t i = 0, c = 0; i < inverse.size(); ++i) {
    while (c + 1 < n && cumulative[c] < (static_cast<double>(i) + 0.5) / 65'536) ++c;
    inverse[i] = static_cast<uint32_t>(c);
    p[c] += 1.0 / 65'536;
  }

  std::mt19937_64 random(12);
  std::vector<uint32_t> labels(static_cast<size_t>(batch));
  BuiltSets built({.classes = classes, .correction = correction, .seed = 6, .head = "main"}, labels,
                  1, candidates, 0);
  for (int64_t step = 0; step < steps; ++step) {
    for (size_t i = 0; i < labels.size(); i += 4) {
      uint64_t word = random();
      for (size_t k = 0; k < 4; ++k, word >>= 16) labels[i + k] = inverse[word & 0xffff];
    }
    built->Build(labels, candidates, step);
    const CandidateSet& set = built->sets()[0];
    const auto* ids = set.ids.data<uint32_t>();
    std::vector<double> q(static_cast<size_t>(candidates));
    double sum = 0;
    for (size_t k = 0; k < q.size(); ++k) {
      sum += q[k] = std::exp(
          z[ids[k]] + (set.bias.defined() ? static_cast<double>(set.bias.data<float>()[k]) : 0.0));
    }
    // A step of the gradient over each class's own curvature, rates falling as 1 / sqrt.
    const double rate = 0.02 / std::sqrt(1 + static_cast<double>(step) / 200);
    for (size_t k = 0; k < q.size(); ++k) z[ids[k]] -= rate * (q[k] / sum) / p[ids[k]];
    for (const uint32_t label : labels) {
      z[label] += rate / p[label] / static_cast<double>(batch);
    }
    if (step < steps / 2) continue;
    for (const uint32_t id : Ids(set)) inclusion[id] += 2.0 / static_cast<double>(steps);
    for (size_t c = 0; c < n; ++c) mean_z[c] += z[c] * 2 / static_cast<double>(steps);
  }

  Stationary out;
  double lse = 0, mean = 0, entropy = 0, corrected = 0, gain = 0;
  for (size_t c = 0; c < n; ++c) {
    lse += std::exp(mean_z[c]);
    mean += p[c] * mean_z[c];
    entropy -= p[c] * std::log(p[c]);
    corrected += p[c] / inclusion[c];
    gain -= p[c] * std::log(inclusion[c]);
  }
  out.excess = std::log(lse) - mean - entropy;
  out.predicted_excess = correction == Correction::kNone ? std::log(corrected) - gain : 0.0;
  for (size_t band = 0; band + 1 < borders.size(); ++band) {
    double measured = 0, expected = 0;
    const auto width = static_cast<double>(borders[band + 1] - borders[band]);
    for (int64_t c = borders[band]; c < borders[band + 1]; ++c) {
      const auto i = static_cast<size_t>(c);
      measured += (mean_z[i] - std::log(p[i])) / width;
      expected -= std::log(inclusion[i]) / width;
    }
    out.measured.push_back(measured - (band == 0 ? 0 : out.measured[0]));
    out.expected.push_back(expected - (band == 0 ? 0 : out.expected[0]));
  }
  std::printf("  excess %.4f, predicted %.4f; z - log p against log 1/pi:", out.excess,
              out.predicted_excess);
  for (size_t band = 1; band < out.measured.size(); ++band)
    std::printf(" %.3f/%.3f", out.measured[band], out.expected[band]);
  std::printf("\n");
  return out;
}

TEST(SampledTraining, RareLogitsRiseByTheLogOfTheirInclusionProbability) {
  const Stationary none = Train(Correction::kNone, 600);
  for (size_t band = 1; band < none.measured.size(); ++band) {
    // The rarest classes see 0.04 labels a batch: over 8,000 steps the mean of a band of a thousand
    // is good to a hundredth.
    EXPECT_TRUE(std::abs(none.measured[band] - none.expected[band]) <= 0.03) << band;
  }
  EXPECT_TRUE(none.expected.back() > 1);
  EXPECT_TRUE(std::abs(none.excess / none.predicted_excess - 1) <= 0.03);
  const Stationary inclusion = Train(Correction::kInclusion, 600);
  EXPECT_TRUE(inclusion.excess < 0.002) << inclusion.excess;
}

}  // namespace
}  // namespace overtok
