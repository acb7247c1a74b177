// Matrices of MuonH: which ones are orthogonalised together depends on who owns what, so it may
// change no bit of the result. Products in TF32, held against double and against f32.
#include "optim/muonh.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/memory.h"
#include "tests/optim/reference_optimizer.h"

namespace overtok {
namespace {

constexpr size_t kMatrices = 5;
constexpr double kRate = 0.02;

using Precision = NewtonSchulzConfig::Precision;
using Matrices = std::vector<std::vector<float>>;

OptimizerConfig Config(Precision precision, NewtonSchulzConfig newton_schulz) {
  OptimizerConfig config;
  config.lr = kRate;
  config.newton_schulz = newton_schulz;
  config.newton_schulz.precision = precision;
  return config;
}

// Values after a step of matrices `first` ... of kMatrices, alone or together. `before`, where
// given: values and gradients before it.
Matrices Steps(const Shape& shape, Precision precision, size_t first, size_t count,
               const NewtonSchulzConfig& newton_schulz = {},
               std::array<Matrices, 2>* before = nullptr) {
  Memory memory(Memory::Mode::kReal);
  Context context = CpuContext();
  std::vector<MuonH::Matrix> matrices;
  for (size_t i = 0; i < count; ++i) {
    const auto take = [&](const char* name) {
      return memory.Take(Purpose::kParameters, name, DType::kF32, shape);
    };
    matrices.push_back({shape, take("w"), take("g"), take("m")});
  }
  MuonH muonh(Config(precision, newton_schulz), matrices, &memory);
  memory.Commit(&context);
  for (size_t i = 0; i < count; ++i) {
    std::mt19937 generator(static_cast<unsigned>(first + i));
    std::normal_distribution<float> normal(0, 0.1F);
    for (int64_t j = 0; j < shape.elements(); ++j) {
      matrices[i].value.data<float>()[j] = normal(generator);
      matrices[i].gradient.data<float>()[j] = normal(generator);
    }
  }
  const auto read = [](const Tensor& x) {
    return std::vector<float>(x.data<float>(), x.data<float>() + x.elements());
  };
  if (before != nullptr) {
    for (const MuonH::Matrix& matrix : matrices) {
      (*before)[0].push_back(read(matrix.value));
      (*before)[1].push_back(read(matrix.gradient));
    }
  }
  muonh.Step(context, {}, kRate, [] {});
  Matrices values;
  for (const MuonH::Matrix& matrix : matrices) values.push_back(read(matrix.value));
  return values;
}

TEST(MuonH, WhatIsOrthogonalisedTogetherChangesNoBit) {
  const int threads = omp_get_max_threads();
  for (const int use : {1, 2}) {
    omp_set_num_threads(use);
    for (const Precision precision : {Precision::kF32, Precision::kTF32, Precision::kBF16}) {
      for (const Shape& shape : {Shape{33, 35}, Shape{48, 200}, Shape{320, 128}, Shape{256, 256}}) {
        const auto together = Steps(shape, precision, 0, kMatrices);
        for (const size_t first : {size_t{1}, kMatrices - 1}) {
          const size_t count = first == 1 ? 2 : 1;
          const auto fewer = Steps(shape, precision, first, count);
          for (size_t i = 0; i < count; ++i) {
            EXPECT_TRUE(std::memcmp(fewer[i].data(), together[first + i].data(),
                                    fewer[i].size() * sizeof(float)) == 0)
                << shape.ToString() << " " << NameOf(precision) << ", " << use << " threads, "
                << count << " together";
          }
        }
      }
    }
  }
  omp_set_num_threads(threads);
}

TEST(MuonH, BatchesJoinEqualShapesUpToALimit) {
  const Shape small{8, 16}, large{2048, 4096};  // 32 MiB in f32
  const std::vector<Shape> shapes = {large, small, large, small, {16, 8}, small};
  const auto f32 = MuonH::Batches(shapes, Precision::kF32);
  EXPECT_EQ(MuonH::Batches(shapes, Precision::kTF32), f32);
  EXPECT_EQ(f32, (std::vector<std::vector<size_t>>{{1, 3, 5}, {4}, {0}, {2}}));
  const auto bf16 = MuonH::Batches(shapes, Precision::kBF16);
  EXPECT_EQ(bf16, (std::vector<std::vector<size_t>>{{1, 3, 5}, {4}, {0, 2}}));
  EXPECT_TRUE(MuonH::Batches({}, Precision::kF32).empty());
}

// The way from `before` to `after`, and how far two of them are apart, over the first's length.
std::vector<double> Way(const Matrices& before, const Matrices& after) {
  std::vector<double> way;
  for (size_t i = 0; i < before.size(); ++i) {
    for (size_t j = 0; j < before[i].size(); ++j)
      way.push_back(static_cast<double>(after[i][j]) - static_cast<double>(before[i][j]));
  }
  return way;
}
double Apart(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, length = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    length += a[i] * a[i];
  }
  return std::sqrt(difference / length);
}

// The same step in double, operands rounded to TF32 where `precision` says so.
std::vector<double> WayInDouble(const Shape& shape, const std::array<Matrices, 2>& before,
                                Precision precision, const NewtonSchulzConfig& newton_schulz) {
  OptimizerConfig config = Config(precision, newton_schulz);
  config.max_grad_norm = 1e30;
  std::vector<double> way;
  for (size_t i = 0; i < before[0].size(); ++i) {
    testing::ReferenceOptimizer reference(config);
    std::map<std::string, testing::ReferenceOptimizer::Tensor2d> w;
    w["w"] = {shape[0],
              shape[1],
              OptimizerGroup::kMuonH,
              {before[0][i].begin(), before[0][i].end()},
              {before[1][i].begin(), before[1][i].end()}};
    reference.Step(&w, 1.0);
    for (size_t j = 0; j < before[0][i].size(); ++j)
      way.push_back(w["w"].value[j] - static_cast<double>(before[0][i][j]));
  }
  return way;
}

struct Distances {
  double to_rounded, to_f32, of_bf16;
};
Distances DistancesOfTF32(const Shape& shape, const NewtonSchulzConfig& newton_schulz) {
  std::array<Matrices, 2> before;
  const auto way = [&](Precision precision) {
    before = {};
    const Matrices after = Steps(shape, precision, 0, 2, newton_schulz, &before);
    return Way(before[0], after);
  };
  const std::vector<double> f32 = way(Precision::kF32), bf16 = way(Precision::kBF16),
                            tf32 = way(Precision::kTF32);
  return {Apart(WayInDouble(shape, before, Precision::kTF32, newton_schulz), tf32),
          Apart(f32, tf32), Apart(f32, bf16)};
}

const Shape kTF32Shapes[] = {{33, 35}, {48, 96}, {96, 48}, {64, 64}};

// One iteration against double with every operand rounded. Sums in f32 are off by some 2^-22, by
// which one operand in 2^10 falls to the other side of a rounding border, a whole 2^-10 away: 2^-15
// in the mean square. Where one product does not round, or one more does, it is some 2^-12: the
// coefficients give the terms of the polynomial equal weights (singular values are about n^-1/2).
TEST(MuonH, TF32RoundsOperandsAndNothingElse) {
  for (const Shape& shape : kTF32Shapes) {
    const auto n = static_cast<double>(std::min(shape[0], shape[1]));
    const Distances apart =
        DistancesOfTF32(shape, {.steps = 1, .coefficients = {0.1, -0.1 * n, n * n}});
    EXPECT_TRUE(apart.to_rounded <= 0x1p-14) << shape.ToString() << ": " << apart.to_rounded;
    EXPECT_TRUE(apart.to_f32 >= 0x1p-12) << shape.ToString() << ": " << apart.to_f32;
  }
}

// A whole step against f32: 15 products of two operands that are off by at most 2^-11 each, to
// either side: together at most 30 times that to first order, which leaves room for what later
// iterations make of them. bf16, whose unit is 8 times as large, is several times as far away.
TEST(MuonH, AStepInTF32StaysCloseToF32) {
  for (const Shape& shape : kTF32Shapes) {
    const Distances apart = DistancesOfTF32(shape, {});
    EXPECT_TRUE(apart.to_f32 <= 30 * 0x1p-11) << shape.ToString() << ": " << apart.to_f32;
    EXPECT_TRUE(apart.to_f32 <= apart.of_bf16 / 3) << shape.ToString() << ": " << apart.of_bf16;
  }
}

}  // namespace
}  // namespace overtok
