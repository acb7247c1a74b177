// Tables under the optimizer: the exact update against dense Adam in double, runs that are cut or
// read from, what a step leaves alone, freezing, and every option against its plain formula.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "tests/optim/read_norms.h"
#include "tests/optim/table_run.h"

namespace overtok {
namespace {

using testing::DenseTable;
using testing::NormOf;
using testing::RowGradients;
using testing::TableRun;

constexpr int64_t kSteps = 300, kWidth = 21;
// Steps between the touches of each row; the last row is never touched, the one before it once.
constexpr int64_t kGaps[] = {1, 2, 3, 5, 10, 20, 50, 77, 100, 150, 200, 250, 1000, 0};
constexpr int64_t kRows = static_cast<int64_t>(std::size(kGaps));

OptimizerConfig BaseConfig() {
  OptimizerConfig config;
  config.lr = 0.02;
  config.adam_lr = 0.008;
  config.eps = 1e-20;
  config.schedule.warmup_steps = 30;
  return config;
}

// Gradients of a step: magnitudes fall from 1 to 1e-10 over the columns. Row r is touched first at
// step 2 r, so that rows meet every part of the schedule.
RowGradients GradientsOf(int64_t step, int64_t width = kWidth, double smallest = 1e-10) {
  RowGradients out;
  for (int64_t row = 0; row < kRows; ++row) {
    const int64_t since = step - 2 * row;
    if (kGaps[row] == 0 || since < 0 || since % kGaps[row] != 0) continue;
    out.rows.push_back(static_cast<uint32_t>(row));
    std::mt19937 generator(static_cast<uint32_t>(1000 * step + row));
    std::normal_distribution<double> normal;
    for (int64_t c = 0; c < width; ++c) {
      const double part = static_cast<double>(c) / static_cast<double>(width - 1);
      out.values.push_back(static_cast<float>(normal(generator) * std::pow(smallest, part)));
    }
  }
  return out;
}

// Worst distance from the reference in units of what rounding can do; reading rounds the decay and
// the value, and nothing keeps its precision below 1e-37.
double Worst(TableRun& run, const DenseTable& dense, int64_t step) {
  const std::vector<double> value = run.Read(step);
  double worst = 0;
  for (size_t i = 0; i < value.size(); ++i) {
    const double bound = 0x1p-24 * (dense.rounding(i) + 2 * std::abs(dense.value()[i])) + 1e-37;
    const double ratio = std::abs(value[i] - dense.value()[i]) / bound;
    if (!(ratio <= worst)) worst = ratio;  // a NaN stays
  }
  return worst;
}

void CompareWithDense(const OptimizerConfig& config, double smallest = 1e-10) {
  TableRun run(config, kSteps, {kRows, kWidth});
  DenseTable dense(config, kSteps, run);
  for (int64_t step = 0; step < kSteps; ++step) {
    if (step % 20 == 0) {
      const double worst = Worst(run, dense, step);
      EXPECT_TRUE(worst <= 1) << "step " << step << ": " << worst;
    }
    const RowGradients gradients = GradientsOf(step, kWidth, smallest);
    run.Step(step, gradients);
    dense.Step(step, gradients);
  }
  const double worst = Worst(run, dense, kSteps);
  EXPECT_TRUE(worst <= 1) << worst;
}

TEST(TableOptimizer, ExactUpdateEqualsDenseAdam) {
  for (const auto type : {ScheduleConfig::Type::kLinear, ScheduleConfig::Type::kCosine}) {
    // The larger two make eps outweigh the root of v in some columns and in all.
    for (const double eps : {1e-20, 1e-15, 1e-8, 10.0}) {
      SCOPED_TRACE(::testing::Message() << "eps " << eps << " schedule " << static_cast<int>(type));
      OptimizerConfig config = BaseConfig();
      config.eps = eps;
      config.schedule.type = type;
      CompareWithDense(config);
    }
  }
}

// Gradients whose squares are below f32's least number: the update is m / eps, as in dense f32.
TEST(TableOptimizer, VanishingSecondMomentsStayFinite) {
  TableRun run(BaseConfig(), kSteps, {kRows, kWidth});
  for (int64_t step = 0; step < kSteps; ++step) run.Step(step, GradientsOf(step, kWidth, 1e-36));
  for (const double value : run.Read(kSteps)) EXPECT_TRUE(std::isfinite(value));
}

// beta1 of sqrt(beta2) or more: the sums over silent steps do not converge.
TEST(TableOptimizer, SlowFirstMomentsAreReplayedStepByStep) {
  for (const double beta2 : {0.81, 0.8, 0.9}) {
    SCOPED_TRACE(beta2);
    OptimizerConfig config = BaseConfig();
    config.beta2 = beta2;
    config.eps = 1e-6;
    CompareWithDense(config, 1e-3);
  }
}

TEST(TableOptimizer, OptionsFollowTheirFormulas) {
  using Change = void (*)(TablesConfig&);
  const std::pair<const char*, Change> changes[] = {
      {"row", [](TablesConfig& t) { t.second_moment = TablesConfig::SecondMoment::kRow; }},
      {"no first moment", [](TablesConfig& t) { t.beta1 = 0; }},
      {"no first moment, row",
       [](TablesConfig& t) {
         t.beta1 = 0;
         t.second_moment = TablesConfig::SecondMoment::kRow;
       }},
      {"adagrad", [](TablesConfig& t) { t.update = TablesConfig::Update::kAdagrad; }},
      {"adagrad, row",
       [](TablesConfig& t) {
         t.update = TablesConfig::Update::kAdagrad;
         t.second_moment = TablesConfig::SecondMoment::kRow;
       }},
      {"sgd", [](TablesConfig& t) { t.update = TablesConfig::Update::kSgd; }},
      {"other beta1 and rate",
       [](TablesConfig& t) {
         t.beta1 = 0.8;
         t.lr_scale = 3;
       }},
  };
  for (const auto& [name, change] : changes) {
    for (const double decay : {0.0, 0.5, 20.0}) {
      SCOPED_TRACE(::testing::Message() << name << ", decay " << decay);
      OptimizerConfig config = BaseConfig();
      change(config.tables);
      config.tables.untouched_decay = decay;
      CompareWithDense(config);
    }
  }
  OptimizerConfig config = BaseConfig();
  config.tables.untouched_decay = 20;
  for (const double eps : {1e-20, 1e-8}) {
    config.eps = eps;
    SCOPED_TRACE(eps);
    CompareWithDense(config);
  }
}

TEST(TableOptimizer, KeepsWhatTheOptionNeeds) {
  OptimizerConfig config = BaseConfig();
  const auto names = [&] {
    std::string text;
    TableRun run(config, 4, {3, 2});
    for (const ShardedTensor& state : run.optimizer().state())
      text += state.name + state.tensor.shape().ToString() + " ";
    return text;
  };
  EXPECT_EQ(names(), "table.m/table[3, 2] table.v/table[3, 2] table.last/table[3] ");
  config.tables.second_moment = TablesConfig::SecondMoment::kRow;
  EXPECT_EQ(names(), "table.m/table[3, 2] table.v/table[3] table.last/table[3] ");
  config.tables.beta1 = 0;
  EXPECT_EQ(names(), "table.v/table[3] table.last/table[3] ");
  config.tables.update = TablesConfig::Update::kAdagrad;
  EXPECT_EQ(names(), "table.v/table[3] ");
  config.tables.update = TablesConfig::Update::kSgd;
  EXPECT_EQ(names(), "");
  config.tables.untouched_decay = 1;
  EXPECT_EQ(names(), "table.last/table[3] ");
}

std::vector<OptimizerConfig> ConfigsThatMustContinue() {
  std::vector<OptimizerConfig> configs(5, BaseConfig());
  configs[1].tables.untouched_decay = 10;
  configs[2].tables.storage = DType::kBF16;
  configs[3].tables.second_moment = TablesConfig::SecondMoment::kRow;
  configs[4].eps = 1e-8;
  return configs;
}

// Cut in the middle of gaps, continued by another optimizer from value, m, v and last: equal bits.
TEST(TableOptimizer, ContinuesInTheMiddleOfGaps) {
  for (const OptimizerConfig& config : ConfigsThatMustContinue()) {
    TableRun whole(config, kSteps, {kRows, kWidth}), begun(config, kSteps, {kRows, kWidth}),
        continued(config, kSteps, {kRows, kWidth});
    for (int64_t step = 0; step < kSteps; ++step) {
      whole.Step(step, GradientsOf(step));
      if (step < 133) begun.Step(step, GradientsOf(step));
    }
    continued.Load(begun);
    for (int64_t step = 133; step < kSteps; ++step) continued.Step(step, GradientsOf(step));
    EXPECT_EQ(whole.Bytes(), continued.Bytes());
    EXPECT_EQ(whole.Read(kSteps), continued.Read(kSteps));
  }
}

TEST(TableOptimizer, ReadingAtEveryStepChangesNoBit) {
  for (const OptimizerConfig& config : ConfigsThatMustContinue()) {
    TableRun plain(config, kSteps, {kRows, kWidth}), read(config, kSteps, {kRows, kWidth});
    for (int64_t step = 0; step < kSteps; ++step) {
      plain.Step(step, GradientsOf(step));
      read.Read(step);
      read.Step(step, GradientsOf(step));
      read.optimizer().tables().At(step / 2);  // the schedule goes back in between
    }
    EXPECT_EQ(plain.Bytes(), read.Bytes());
  }
}

// Expects rows other than `touched` to hold the bytes that they held.
void ExpectOthersUnchanged(const TableRun& run, const TableRun& before,
                           const std::vector<uint32_t>& touched) {
  const std::vector<Tensor> now = run.state(), then = before.state();
  for (size_t k = 0; k < now.size(); ++k) {
    const auto row_bytes = static_cast<size_t>(now[k].bytes() / now[k].dim(0));
    for (int64_t row = 0; row < now[k].dim(0); ++row) {
      const bool same =
          std::memcmp(static_cast<char*>(now[k].raw()) + static_cast<size_t>(row) * row_bytes,
                      static_cast<char*>(then[k].raw()) + static_cast<size_t>(row) * row_bytes,
                      row_bytes) == 0;
      const bool is_touched =
          std::find(touched.begin(), touched.end(), static_cast<uint32_t>(row)) != touched.end();
      EXPECT_EQ(same, !is_touched) << "tensor " << k << " row " << row;
    }
  }
}

TEST(TableOptimizer, AStepWorksOnTouchedRowsAlone) {
  const OptimizerConfig config = BaseConfig();
  TableRun run(config, kSteps, {kRows, kWidth}), before(config, kSteps, {kRows, kWidth});
  for (int64_t step = 0; step < 100; ++step) {
    before.Load(run);
    const RowGradients gradients = GradientsOf(step);
    run.Step(step, gradients);
    if (step > 30) ExpectOthersUnchanged(run, before, gradients.rows);
  }
}

// Megatron-LM-FL#24: tables had an optimizer of their own, with another norm and another buffer.
TEST(TableOptimizer, RowsThreeAndSevenAreCountedOnceInTheGroupsNorm) {
  OptimizerConfig config = BaseConfig();
  config.schedule.warmup_steps = 0;
  Memory memory(Memory::Mode::kReal);
  Context context = CpuContext();
  ParameterSet parameters(&memory, DType::kF32, true, StorageOf(config));
  Parameter& gain = parameters.Add(
      {"gain", {5}, Placement::kReplicated, OptimizerGroup::kAdam, Initializer::kOnes, 1}, false);
  Parameter& table = parameters.Add({.name = "table",
                                     .shape = {12, 4},
                                     .placement = Placement::kReplicated,
                                     .group = OptimizerGroup::kAdam,
                                     .initializer = Initializer::kNormal,
                                     .scale = 1,
                                     .update = UpdateKind::kTable,
                                     .touched_capacity = 6},
                                    false);
  const std::unique_ptr<Communicator> world = OneRank();
  const Mesh mesh(world.get(), 1);
  Optimizer optimizer(config, 10, 1, &parameters, {&gain}, &mesh, &memory);
  memory.Commit(&context);
  parameters.Initialize(3);
  const std::vector<float> before(table.value.data<float>(), table.value.data<float>() + 48);
  std::fill_n(gain.gradient.data<float>(), 5, 0.25F);
  table.touched.rows.data<uint32_t>()[0] = 3;
  table.touched.rows.data<uint32_t>()[1] = 7;
  // What an earlier step left behind the used part may not count.
  std::fill_n(table.touched.gradient.data<float>(), 24, 1e6F);
  std::fill_n(table.touched.gradient.data<float>(), 8, 0.5F);
  table.touched.count = 2;
  table.owned = table.touched;
  optimizer.BeginStep(0);
  optimizer.CatchUp(context);
  optimizer.ComputeNorms(context, 0, {});
  // 5 / 16 + 8 / 4: exact in binary.
  EXPECT_EQ(NormOf(OptimizerGroup::kAdam, context, optimizer), std::sqrt(5 * 0.0625 + 8 * 0.25));
  optimizer.Step(context, 0, 1);
  for (int64_t i = 0; i < 48; ++i) {
    const bool touched = i / 4 == 3 || i / 4 == 7;
    // Adam's first step is the rate, whatever the clipped gradient's size.
    const double expected = before[static_cast<size_t>(i)] - (touched ? 0.008 : 0.0);
    EXPECT_TRUE(std::abs(table.value.data<float>()[i] - expected) <= 4 * 0x1p-24) << i;
    // (1 - beta1) times the gradient, clipped by the norm of the whole group.
    const double m = touched ? 0.1 * 0.5 / std::sqrt(2.3125) : 0;
    EXPECT_TRUE(std::abs(table.table.m.data<float>()[i] - m) <= 4 * 0x1p-24 * m) << i;
  }
  EXPECT_EQ(table.value.raw(), table.table.value.raw());
}

TEST(TableOptimizer, NothingTouchedAndZeroGradients) {
  TableRun run(BaseConfig(), kSteps, {kRows, kWidth});
  const std::vector<char> before = run.Bytes();
  for (int64_t step = 0; step < 3; ++step) run.Step(step, {});
  EXPECT_EQ(run.Bytes(), before);
  EXPECT_EQ(NormOf(OptimizerGroup::kAdam, run.context(), run.optimizer()), 0);
  const std::vector<double> value = run.Read(3);
  RowGradients zeros;
  zeros.rows = {2, 5};
  zeros.values.assign(2 * kWidth, 0.0F);
  for (int64_t step = 3; step < 40; step += 9) run.Step(step, zeros);
  EXPECT_EQ(run.Read(40), value);
}

// From freeze_step on the gradient counts for nothing: the norm is 0, m and v decay.
TEST(TableOptimizer, FrozenTablesComeToRest) {
  OptimizerConfig config = BaseConfig();
  config.tables.freeze_step = 60;
  TableRun frozen(config, kSteps, {kRows, kWidth}, /*freezes=*/true);
  TableRun other(config, kSteps, {kRows, kWidth}, /*freezes=*/false);
  DenseTable dense(config, kSteps, frozen);
  for (int64_t step = 0; step < kSteps; ++step) {
    const RowGradients gradients = GradientsOf(step);
    frozen.Step(step, gradients);
    other.Step(step, gradients);
    EXPECT_EQ(NormOf(OptimizerGroup::kAdam, frozen.context(), frozen.optimizer()) == 0, step >= 60)
        << step;
    EXPECT_TRUE(NormOf(OptimizerGroup::kAdam, other.context(), other.optimizer()) > 0);
    dense.Step(step, step < 60 ? gradients : RowGradients());
    // A row touched in a frozen step is written once, by its replay; the reference does not know.
    if (step % 20 == 0) {
      const std::vector<double> value = frozen.Read(step + 1);
      for (size_t i = 0; i < value.size(); ++i) {
        const double bound = 0x1p-24 * (dense.rounding(i) +
                                        static_cast<double>(step + 1) * std::abs(dense.value()[i]));
        ASSERT_TRUE(std::abs(value[i] - dense.value()[i]) <= bound) << step << ", " << i;
      }
    }
  }
  // rho^239 of the movement is left.
  const std::vector<double> end = frozen.Read(kSteps), earlier = frozen.Read(kSteps - 1);
  EXPECT_EQ(end, earlier);
}

// Stochastic rounding is right on average: the mean over seeds is the value that f32 storage gives.
TEST(TableOptimizer, Bf16RowsAreRightOnAverage) {
  OptimizerConfig config = BaseConfig();
  config.schedule.warmup_steps = 0;
  config.adam_lr = 1e-4;  // a step far below the distance of bf16 numbers, so that nearest loses it
  config.tables.storage = DType::kBF16;
  constexpr int64_t kRuns = 400, kFew = 12;
  std::vector<double> sum(static_cast<size_t>(kRows * kWidth), 0.0), squares(sum);
  std::vector<double> start, expected;
  for (int64_t seed = 0; seed < kRuns; ++seed) {
    TableRun run(config, kFew, {kRows, kWidth}, false, static_cast<uint64_t>(seed));
    DenseTable dense(config, kFew, run);
    if (seed == 0) start = run.Read(0);
    for (int64_t step = 0; step < kFew; ++step) {
      const RowGradients gradients = GradientsOf(step, kWidth, 1e-3);
      run.Step(step, gradients);
      if (seed == 0) dense.Step(step, gradients);
    }
    if (seed == 0) expected = dense.value();
    const std::vector<double> value = run.Read(kFew);
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] += value[i];
      squares[i] += value[i] * value[i];
    }
  }
  double moved = 0;
  for (size_t i = 0; i < sum.size(); ++i) {
    const double mean = sum[i] / kRuns;
    const double variance = squares[i] / kRuns - mean * mean;
    // 5 standard errors over 294 elements: one false alarm in 6,000 drawings, and these are fixed.
    const double error = 5 * std::sqrt(std::max(0.0, variance) / kRuns) + 1e-7;
    EXPECT_TRUE(std::abs(mean - expected[i]) <= error) << i << ": " << mean << ", " << expected[i];
    moved = std::max(moved, std::abs(expected[i] - start[i]));
  }
  EXPECT_TRUE(moved >= 4e-4) << moved;  // there was something to lose
}

TEST(TableOptimizer, RoundingDependsOnTheSeed) {
  OptimizerConfig config = BaseConfig();
  config.tables.storage = DType::kBF16;
  const auto bytes = [&](uint64_t seed) {
    TableRun run(config, kSteps, {kRows, kWidth}, false, seed);
    for (int64_t step = 0; step < 50; ++step) run.Step(step, GradientsOf(step));
    return run.Bytes();
  };
  EXPECT_EQ(bytes(1), bytes(1));
  EXPECT_NE(bytes(1), bytes(2));
}

TEST(TableOptimizer, ReinitializedTablesStartAfresh) {
  TableRun run(BaseConfig(), kSteps, {kRows, kWidth});
  const std::vector<double> initial = run.Read(0);
  for (int64_t step = 0; step < 100; ++step) run.Step(step, GradientsOf(step));
  run.parameters().ReinitializeTable(run.table(), 7, 1, 100);
  const std::vector<double> fresh = run.Read(100);
  EXPECT_NE(fresh, initial);
  EXPECT_EQ(run.Read(150), fresh);  // no moments
  run.parameters().ReinitializeTable(run.table(), 7, 2, 100);
  EXPECT_NE(run.Read(100), fresh);
  run.parameters().ReinitializeTable(run.table(), 7, 1, 100);
  EXPECT_EQ(run.Read(100), fresh);
  DenseTable dense(BaseConfig(), kSteps, run);
  for (int64_t step = 100; step < kSteps; ++step) {
    run.Step(step, GradientsOf(step));
    dense.Step(step, GradientsOf(step));
  }
  EXPECT_TRUE(Worst(run, dense, kSteps) <= 1);
}

}  // namespace
}  // namespace overtok
