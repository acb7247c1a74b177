// Matrices of MuonH: which ones are orthogonalised together depends on who owns what, so it may
// change no bit of the result.
#include "optim/muonh.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/memory.h"

namespace overtok {
namespace {

constexpr size_t kMatrices = 5;

OptimizerConfig Config(DType precision) {
  OptimizerConfig config;
  config.lr = 0.02;
  config.newton_schulz.precision = precision;
  return config;
}

// Values after a step of matrices `first` ... of kMatrices, alone or together.
std::vector<std::vector<float>> Steps(const Shape& shape, DType precision, size_t first,
                                      size_t count) {
  Memory memory(Memory::Mode::kReal);
  Context context = CpuContext();
  std::vector<MuonH::Matrix> matrices;
  for (size_t i = 0; i < count; ++i) {
    const auto take = [&](const char* name) {
      return memory.Take(Purpose::kParameters, name, DType::kF32, shape);
    };
    matrices.push_back({shape, take("w"), take("g"), take("m")});
  }
  MuonH muonh(Config(precision), matrices, &memory);
  memory.Commit(&context);
  for (size_t i = 0; i < count; ++i) {
    std::mt19937 generator(static_cast<unsigned>(first + i));
    std::normal_distribution<float> normal(0, 0.1F);
    for (int64_t j = 0; j < shape.elements(); ++j) {
      matrices[i].value.data<float>()[j] = normal(generator);
      matrices[i].gradient.data<float>()[j] = normal(generator);
    }
  }
  muonh.Step(context, {}, 0.02, [] {});
  std::vector<std::vector<float>> values;
  for (const MuonH::Matrix& matrix : matrices) {
    const float* value = matrix.value.data<float>();
    values.emplace_back(value, value + shape.elements());
  }
  return values;
}

TEST(MuonH, WhatIsOrthogonalisedTogetherChangesNoBit) {
  const int threads = omp_get_max_threads();
  for (const int use : {1, 2}) {
    omp_set_num_threads(use);
    for (const DType precision : {DType::kF32, DType::kBF16}) {
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
  const auto f32 = MuonH::Batches(shapes, DType::kF32);
  EXPECT_EQ(f32, (std::vector<std::vector<size_t>>{{1, 3, 5}, {4}, {0}, {2}}));
  const auto bf16 = MuonH::Batches(shapes, DType::kBF16);
  EXPECT_EQ(bf16, (std::vector<std::vector<size_t>>{{1, 3, 5}, {4}, {0, 2}}));
  EXPECT_TRUE(MuonH::Batches({}, DType::kF32).empty());
}

}  // namespace
}  // namespace overtok
