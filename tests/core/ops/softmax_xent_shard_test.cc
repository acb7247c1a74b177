// The softmax kernels over divided classes: on one rank the fused kernel's bits; on several, with
// uneven and empty shards, its figures in double, for every storage type; targets at shard borders
// and away from the maximum; confident rows; -infinity, NaN, rows without weight, targets nobody
// has.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/cuda/emulation/known_memory.h"
#include "core/ops/embedding.h"
#include "core/ops/softmax_xent.h"
#include "tests/core/ops/op_harness.h"

namespace overtok {
namespace {

using testing::Buffer;
using testing::FillIds;
using testing::FillNormal;
using testing::FillUniform;
using testing::Operand;
using testing::Role;
using testing::ScratchContext;
using testing::Storage;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Columns [begin, end) of a matrix, or back into it.
enum class Direction : uint8_t { kOut, kBack };
void CopyColumns(const Tensor& whole, int64_t begin, const Tensor& part, Direction direction) {
  const auto element = static_cast<size_t>(SizeOf(whole.dtype()));
  const size_t width = static_cast<size_t>(part.dim(1)) * element;
  for (int64_t r = 0; r < whole.dim(0); ++r) {
    char* in_whole =
        static_cast<char*>(whole.raw()) + static_cast<size_t>(r * whole.dim(1) + begin) * element;
    char* in_part = static_cast<char*>(part.raw()) + static_cast<size_t>(r) * width;
    if (width == 0) continue;
    if (direction == Direction::kOut) std::memcpy(in_part, in_whole, width);
    if (direction == Direction::kBack) std::memcpy(in_whole, in_part, width);
  }
}

// Both visits on every shard, borders[k] to borders[k + 1]; the arguments are of all classes. A
// target of kNoRow is nobody's. start: of the shards' tensors.
void RunShards(const Context& context, const SoftmaxXentArgs& args,
               const std::vector<int64_t>& borders, Buffer::Start start = Buffer::Start::kOdd) {
  const int64_t rows = args.logits.dim(0);
  const auto ranks = static_cast<int64_t>(borders.size()) - 1;
  Buffer all_stats(DType::kF64, {ranks, rows, 3});
  all_stats.Poison();
  std::vector<Buffer> logits, targets, bias;
  for (int64_t k = 0; k < ranks; ++k) {
    const int64_t begin = borders[static_cast<size_t>(k)];
    const int64_t count = borders[static_cast<size_t>(k) + 1] - begin;
    logits.emplace_back(args.logits.dtype(), Shape{rows, count}, start);
    CopyColumns(args.logits, begin, logits.back().tensor(), Direction::kOut);
    bias.emplace_back(args.logits.dtype(), Shape{1, count}, start);
    if (args.bias.defined()) {
      CopyColumns(args.bias.Reshape({1, args.bias.elements()}), begin, bias.back().tensor(),
                  Direction::kOut);
    }
    targets.emplace_back(DType::kU32, Shape{rows});
    for (int64_t r = 0; r < rows; ++r) {
      const uint32_t target = args.targets.data<uint32_t>()[r];
      const bool here = target != kNoRow && target >= begin && target < begin + count;
      targets.back().tensor().data<uint32_t>()[r] =
          here ? target - static_cast<uint32_t>(begin) : kNoRow;
    }
    const Buffer before(logits.back());
    SoftmaxShardStats(context,
                      {logits.back().tensor(), targets.back().tensor(),
                       args.bias.defined() ? bias.back().tensor().Reshape({count}) : Tensor(),
                       all_stats.tensor().Rows(k, 1).Reshape({rows, 3})});
    EXPECT_TRUE(logits.back().SameBits(before));
  }
  const Buffer stats_before(all_stats);
  for (int64_t k = 0; k < ranks; ++k) {
    const auto i = static_cast<size_t>(k);
    const int64_t count = logits[i].shape()[1];
    const DType gradient_type = args.dlogits.defined() ? args.dlogits.dtype() : args.logits.dtype();
    Buffer gradient(gradient_type, {rows, count}, start), loss(args.loss.dtype(), {rows}),
        lse(args.lse.dtype(), {rows});
    for (Buffer* output : {&gradient, &loss, &lse}) output->Poison();
    SoftmaxXentShardArgs shard = {
        .logits = logits[i].tensor(),
        .targets = targets[i].tensor(),
        .weight = args.weight,
        .dlogits = args.dlogits.defined() ? gradient.tensor() : Tensor(),
        .loss = loss.tensor(),
        .lse = lse.tensor(),
        .all_stats = all_stats.tensor(),
        .z_loss = args.z_loss,
        .bias = args.bias.defined() ? bias[i].tensor().Reshape({count}) : Tensor(),
        .focal_gamma = args.focal_gamma};
    const Buffer before(logits[i]);
    SoftmaxXentShard(context, shard);
    EXPECT_TRUE(logits[i].SameBits(before));
    if (args.logits.dtype() != DType::kF64) {  // which the CPU forms
      EXPECT_TRUE(loss.FirstUnwritten() == -1 && lse.FirstUnwritten() == -1);
      EXPECT_TRUE(!args.dlogits.defined() || gradient.FirstUnwritten() == -1);
    }
    if (args.dlogits.defined()) {
      CopyColumns(args.dlogits, borders[i], gradient.tensor(), Direction::kBack);
      if (gradient_type == args.logits.dtype()) {  // in place: the same
        shard.dlogits = shard.logits;
        SoftmaxXentShard(context, shard);
        EXPECT_TRUE(logits[i].SameBits(gradient));
      }
    }
    const auto bytes = static_cast<size_t>(args.loss.bytes());
    if (k > 0) {  // the same bits on every rank
      EXPECT_EQ(std::memcmp(args.loss.raw(), loss.tensor().raw(), bytes), 0);
      EXPECT_EQ(std::memcmp(args.lse.raw(), lse.tensor().raw(), bytes), 0);
    }
    std::memcpy(args.loss.raw(), loss.tensor().raw(), bytes);
    std::memcpy(args.lse.raw(), lse.tensor().raw(), bytes);
  }
  EXPECT_TRUE(all_stats.SameBits(stats_before));
  // Put together here, of pieces that kernels wrote.
  for (const Tensor& whole : {args.dlogits, args.loss, args.lse})
    if (whole.defined()) emulation::MarkWritten(whole.raw(), whole.bytes());
}

struct Options {
  double z_loss = 0, focal_gamma = 0;
  bool bias = false;
};
const std::vector<Options> kOptions = {
    {}, {.z_loss = 1e-2}, {.focal_gamma = 2}, {.bias = true}, {0.05, 0.5, true}};

// f64 is the CPU's.
Device* DeviceOf(DType dtype) {
  return dtype == DType::kF64 ? CpuDevice() : testing::TestedDevice();
}

// What one run needs, in one storage type.
struct Rows {
  Rows(int64_t rows, int64_t classes, DType statistic, DType gradient_type, double scale = 3)
      : logits(statistic, {rows, classes}),
        targets(DType::kU32, {rows}),
        weight(statistic, {rows}),
        bias(statistic, {classes}),
        gradient(gradient_type, {rows, classes}),
        loss(statistic, {rows}),
        lse(statistic, {rows}) {
    FillNormal(logits, 1, scale);
    FillIds(targets, 2, classes);
    FillUniform(weight, 3, 0.5, 1.5);
    FillNormal(bias, 4, 2);
    gradient.Poison();
  }
  SoftmaxXentArgs Args(const Options& options, bool gradients = true) const {
    return {.logits = logits.tensor(),
            .targets = targets.tensor(),
            .weight = weight.tensor(),
            .dlogits = gradients ? gradient.tensor() : Tensor(),
            .loss = loss.tensor(),
            .lse = lse.tensor(),
            .z_loss = options.z_loss,
            .bias = options.bias ? bias.tensor() : Tensor(),
            .focal_gamma = options.focal_gamma};
  }
  void RunDivided(const Options& options, const std::vector<int64_t>& borders,
                  bool gradients = true, Buffer::Start start = Buffer::Start::kOdd) const {
    const ScratchContext context(0, DeviceOf(logits.dtype()));
    RunShards(*context, Args(options, gradients), borders, start);
  }
  void RunFused(const Options& options) const {
    const ScratchContext context(0, DeviceOf(logits.dtype()));
    // Logits are scratch of the fused op.
    const Buffer copy(logits);
    SoftmaxXentArgs args = Args(options);
    args.logits = copy.tensor();
    SoftmaxXent(*context, args);
  }

  Buffer logits, targets, weight, bias, gradient, loss, lse;
};

TEST(SoftmaxShards, OneRankGivesTheFusedBits) {
  for (const int64_t classes : {1, 7, 100, 5'003}) {
    for (const DType statistic : {DType::kF32, DType::kF64}) {
      for (const DType gradient : {statistic, DType::kBF16}) {
        if (statistic == DType::kF64 && gradient == DType::kBF16) continue;
        for (const Options& options : kOptions) {
          const Rows divided(9, classes, statistic, gradient),
              fused(9, classes, statistic, gradient);
          // Columns loaded alone in one, in packs in the other.
          divided.RunDivided(options, {0, classes}, true, Buffer::Start::kAligned);
          fused.RunFused(options);
          EXPECT_TRUE(divided.gradient.SameBits(fused.gradient)) << classes;
          EXPECT_TRUE(divided.loss.SameBits(fused.loss)) << classes;
          EXPECT_TRUE(divided.lse.SameBits(fused.lse)) << classes;
        }
      }
    }
  }
}

// Rows that a device sums in one visit, and does not keep whole (40,960).
TEST(SoftmaxShards, OneRankGivesTheFusedBitsOfLongRows) {
  for (const DType gradient : {DType::kF32, DType::kBF16}) {
    for (const int64_t classes : {41'003, 41'004}) {
      const Options options = {0.05, 0.5, true};
      const Rows divided(2, classes, DType::kF32, gradient, 40),
          fused(2, classes, DType::kF32, gradient, 40);
      divided.RunDivided(options, {0, classes}, true, Buffer::Start::kAligned);
      fused.RunFused(options);
      EXPECT_TRUE(divided.gradient.SameBits(fused.gradient)) << classes;
      EXPECT_TRUE(divided.loss.SameBits(fused.loss) && divided.lse.SameBits(fused.lse)) << classes;
    }
  }
}

// Uneven parts, parts without classes in front, between and behind.
const std::vector<std::vector<int64_t>> kBorders = {
    {0, 50, 101}, {0, 64, 101, 101, 101}, {0, 0, 1, 100, 101}, {0, 33, 33, 100, 101}};

TEST(SoftmaxShards, EqualTheWholeInDouble) {
  for (const auto& borders : kBorders) {
    for (const Options& options : kOptions) {
      const Rows whole(40, 101, DType::kF64, DType::kF64);
      whole.RunFused(options);
      const Rows divided(40, 101, DType::kF64, DType::kF64);
      divided.RunDivided(options, borders);
      // Exponentials from another maximum, sums in another order: a few 1e-16 times |x - max| = 20.
      testing::ExpectClose("gradient", divided.gradient, whole.gradient,
                           {.relative = 1e-13, .absolute = 1e-16});
      testing::ExpectClose("loss", divided.loss, whole.loss, {.relative = 1e-14});
      testing::ExpectClose("lse", divided.lse, whole.lse, {.relative = 1e-14});
      const Rows evaluated(40, 101, DType::kF64, DType::kF64);
      evaluated.RunDivided(options, borders, /*gradients=*/false);
      EXPECT_TRUE(evaluated.loss.SameBits(divided.loss) && evaluated.lse.SameBits(divided.lse));
    }
  }
}

TEST(SoftmaxShards, AgreeAcrossStorageTypesAndThreads) {
  struct Size {
    int64_t rows, classes;
    std::vector<int64_t> borders;
  };
  // One class, widths no vector divides, more than one strip of the sum (2,048), enough rows for
  // two threads.
  const std::vector<Size> sizes = {{1, 1, {0, 0, 1}},
                                   {3, 7, {0, 3, 7}},
                                   {40, 257, {0, 64, 257}},
                                   {4, 5'003, {0, 2'500, 2'500, 5'003}}};
  for (const Size& s : sizes) {
    for (const Options& options : kOptions) {
      const std::vector<Operand> operands = {
          {.name = "logits",
           .storage = Storage::kStatistic,
           .shape = {s.rows, s.classes},
           .fill = [](Buffer& b) { FillNormal(b, 1, 3); }},
          {.name = "targets",
           .storage = Storage::kFixed,
           .shape = {s.rows},
           .fill = [&](Buffer& b) { FillIds(b, 2, s.classes); },
           .fixed = DType::kU32},
          {.name = "weight",
           .storage = Storage::kStatistic,
           .shape = {s.rows},
           .fill = [](Buffer& b) { FillUniform(b, 3, 0, 2); }},
          {.name = "bias",
           .storage = Storage::kStatistic,
           .shape = {s.classes},
           .fill = [](Buffer& b) { FillNormal(b, 4, 2); }},
          // As of the fused op: |x - max| up to 25 gives 25 units; bf16: one rounding beside.
          {.name = "dlogits",
           .role = Role::kOutput,
           .shape = {s.rows, s.classes},
           .value_units = 40,
           .tensor_units = 1,
           .bf16_value_units = 1.01,
           .bf16_tensor_units = 1e-4},
          {.name = "loss",
           .role = Role::kOutput,
           .storage = Storage::kStatistic,
           .shape = {s.rows}},
          {.name = "lse",
           .role = Role::kOutput,
           .storage = Storage::kStatistic,
           .shape = {s.rows}}};
      testing::CheckOp({.name = "divided softmax " + Shape({s.rows, s.classes}).ToString(),
                        .operands = operands,
                        .run = [&](const Context& c, const std::vector<Tensor>& t) {
                          RunShards(c,
                                    {t[0], t[1], t[2], t[4], t[5], t[6], options.z_loss,
                                     options.bias ? t[3] : Tensor(), options.focal_gamma},
                                    s.borders);
                        }});
    }
  }
}

// Five classes on two ranks: masses 1, 4, 6, 4, 1 over 16, and not two softmaxes of their own.
TEST(SoftmaxShards, ABinomialOverTwoRanks) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (uint32_t target = 0; target < 5; ++target) {
      Rows x(1, 5, dtype, dtype);
      const double masses[] = {1, 4, 6, 4, 1};
      for (int64_t i = 0; i < 5; ++i) x.logits.Set(i, std::log(masses[i]));
      x.targets.Set(0, target);
      x.weight.Set(0, 1);
      for (const std::vector<int64_t>& borders : {std::vector<int64_t>{0, 2, 5}, {0, 3, 5}}) {
        x.RunDivided({}, borders);
        std::vector<double> expected;
        for (uint32_t i = 0; i < 5; ++i) expected.push_back(masses[i] / 16 - (i == target ? 1 : 0));
        // Rounded logarithms: two roundings of numbers below 2.
        const double unit = dtype == DType::kF32 ? 6e-8 : 1.1e-16;
        testing::ExpectClose("gradient", x.gradient, expected, {.relative = 4 * unit});
        testing::ExpectClose("loss", x.loss, {std::log(16 / masses[target])},
                             {.relative = 4 * unit});
      }
    }
  }
}

// cases.md 29, with the two columns on different ranks.
TEST(SoftmaxShards, AnImpossibleTargetCostsExactlyItsDistance) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    Rows x(1, 2, dtype, dtype);
    x.logits.Set(0, 0);
    x.logits.Set(1, 200);
    x.targets.Set(0, 0);
    x.weight.Set(0, 1);
    x.RunDivided({}, {0, 1, 2});
    EXPECT_EQ(x.loss.Get(0), 200);
    EXPECT_EQ(x.lse.Get(0), 200);
    testing::ExpectClose("gradient", x.gradient, {-1, 1}, {});
  }
}

// cases.md 14: p - 1 keeps its digits, whichever ranks have the target and the rest.
TEST(SoftmaxShards, ConfidentRowsKeepTheTargetsGradient) {
  for (const double logit : {2.0, 7.0, 20.0, 60.0}) {
    for (const DType gradient : {DType::kF32, DType::kBF16}) {
      for (const std::vector<int64_t>& borders :
           {std::vector<int64_t>{0, 1, 3}, {0, 2, 3}, {0, 0, 3}}) {
        Rows x(1, 3, DType::kF32, gradient);
        x.logits.Set(0, logit);
        x.logits.Set(1, 0);
        x.logits.Set(2, 0);
        x.targets.Set(0, 0);
        x.weight.Set(0, 1);
        x.RunDivided({}, borders);
        const double others = 2 * std::exp(-logit), rest = others / (1 + others);
        // One rounding, and two units of the exponential.
        const double relative = gradient == DType::kBF16 ? 0.004 : 3e-7;
        testing::ExpectClose("gradient", x.gradient, {-rest, rest / 2, rest / 2},
                             {.relative = relative});
        testing::ExpectClose("loss", x.loss, {std::log1p(others)}, {.relative = 3e-7});
      }
    }
  }
}

// cases.md 17.
TEST(SoftmaxShards, RowsOfWeightZeroHaveExactlyNoGradient) {
  for (const DType gradient : {DType::kF32, DType::kBF16}) {
    Rows x(3, 21, DType::kF32, gradient);
    for (int64_t r = 0; r < 3; ++r) x.weight.Set(r, 0);
    x.logits.Set(5, kInfinity);                     // even where the row is broken
    x.targets.Set(1, static_cast<double>(kNoRow));  // or nobody has its target
    x.RunDivided({.z_loss = 1e-4}, {0, 10, 10, 21});
    for (int64_t i = 0; i < x.gradient.size(); ++i) ASSERT_TRUE(x.gradient.Get(i) == 0) << i;
    EXPECT_TRUE(x.loss.Get(2) > 0 && std::isfinite(x.loss.Get(2)));
  }
  const Rows none(0, 5, DType::kF32, DType::kF32);
  none.RunDivided({}, {0, 2, 5});
}

TEST(SoftmaxShards, ATargetThatNobodyHasCannotPass) {
  Rows x(2, 9, DType::kF32, DType::kF32);
  x.targets.Set(0, static_cast<double>(kNoRow));
  x.RunDivided({}, {0, 4, 9});
  EXPECT_EQ(x.loss.Get(0), kInfinity);
  EXPECT_TRUE(std::isfinite(x.loss.Get(1)));
}

TEST(SoftmaxShards, ClassesOfMinusInfinityAreNotThere) {
  // The second rank has only such.
  Rows x(1, 6, DType::kF32, DType::kF32);
  x.targets.Set(0, 1);
  x.weight.Set(0, 1);
  for (int64_t i = 0; i < 6; ++i) {
    x.logits.Set(i, static_cast<double>(i));
    x.bias.Set(i, i < 3 ? 0 : -kInfinity);
  }
  x.RunDivided({.bias = true}, {0, 3, 6});
  const double sum = 1 + std::exp(1.0) + std::exp(2.0);
  testing::ExpectClose("gradient", x.gradient,
                       {1 / sum, std::exp(1.0) / sum - 1, std::exp(2.0) / sum, 0, 0, 0},
                       {.relative = 5e-7});
  testing::ExpectClose("loss", x.loss, {std::log(sum) - 1}, {.relative = 3e-7});
}

TEST(SoftmaxShards, NotANumberReachesTheLossOfEveryRank) {
  for (const int64_t at : {0, 3, 15, 40}) {  // 3: the target
    for (const double others : {0.0, -kInfinity}) {
      Rows x(1, 41, DType::kF32, DType::kF32);
      for (int64_t i = 20; i < 41; ++i) x.logits.Set(i, others);
      x.logits.Set(at, std::numeric_limits<double>::quiet_NaN());
      x.targets.Set(0, 3);
      x.RunDivided({}, {0, 20, 41});
      EXPECT_TRUE(std::isnan(x.loss.Get(0))) << at;
    }
  }
}

}  // namespace
}  // namespace overtok
