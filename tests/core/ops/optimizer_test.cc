#include "core/ops/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/core/ops/op_harness.h"

namespace overtok {
namespace {

using testing::Buffer;
using testing::FillNormal;
using testing::FillUniform;
using testing::Operand;
using testing::Role;
using testing::ScratchContext;
using testing::Storage;

// Below and above vectors, and above one block of a sum (16,384).
const std::vector<int64_t> kSizes = {1, 7, 33, 1000, 16384, 50001};

void FillW(Buffer& b) { FillNormal(b, 1, 1); }
void FillG(Buffer& b) { FillNormal(b, 2, 0.1); }
void FillM(Buffer& b) { FillNormal(b, 3, 0.1); }
void FillV(Buffer& b) { FillUniform(b, 4, 0.001, 0.02); }
void FillNorm(Buffer& b) { FillUniform(b, 5, 4, 4.1); }

Operand State(const std::string& name, int64_t n, Role role, void (*fill)(Buffer&)) {
  return {.name = name, .role = role, .storage = Storage::kStatistic, .shape = {n}, .fill = fill};
}
Operand Scalars(const std::string& name, int64_t n, Role role, void (*fill)(Buffer&)) {
  return {.name = name,
          .role = role,
          .storage = Storage::kFixed,
          .shape = {n},
          .fill = fill,
          .fixed = DType::kF64};
}

// f64 is the CPU's.
Device* DeviceFor(DType dtype) {
  return dtype == DType::kF64 ? CpuDevice() : testing::TestedDevice();
}

const AdamConstants kAdam = {
    .beta1 = 0.9, .beta2 = 0.98, .eps = 1e-8, .correction1 = 0.271, .correction2 = 0.0588};

TEST(Optimizer, SumSquaresAgreesAcrossStorageTypesAndThreads) {
  for (const int64_t block : {kBlockElements, int64_t{1}, int64_t{100}, int64_t{24}}) {
    for (const int64_t n : kSizes) {
      // A warp a sum: thousands of them take the emulation seconds.
      if (block < kBlockElements && n > 1000 && !testing::TestsCpu()) continue;
      Operand sums = Scalars("sums", (n + block - 1) / block, Role::kOutput, nullptr);
      sums.value_units = 1e-3;  // the squares of f32 and bf16 are exact in f64
      sums.tensor_units = 0;
      testing::CheckOp({.name = "sums of squares " + std::to_string(n),
                        .operands = {{.name = "x", .shape = {n}, .fill = FillW}, sums},
                        .run = [block](const Context& c, const std::vector<Tensor>& t) {
                          SumSquares(c, {t[0], t[1], block});
                        }});
    }
  }
}

TEST(Optimizer, MuonMomentumAgreesAcrossStorageTypesAndThreads) {
  for (const int64_t n : kSizes) {
    for (const bool nesterov : {false, true}) {
      testing::CheckOp({.name = "Muon's momentum " + std::to_string(n),
                        .operands = {State("gradient", n, Role::kInput, FillG),
                                     State("buffer", n, Role::kInputOutput, FillM),
                                     {.name = "x", .role = Role::kOutput, .shape = {n}},
                                     Scalars("norm", 1, Role::kOutput, nullptr),
                                     Scalars("clip norm", 1, Role::kInput, FillNorm)},
                        .run =
                            [&](const Context& c, const std::vector<Tensor>& t) {
                              MuonMomentum(c, {.gradient = t[0],
                                               .buffer = t[1],
                                               .x = t[2],
                                               .norm_squared = t[3],
                                               .clip = {t[4], 1.0},
                                               .momentum = 0.95,
                                               .nesterov = nesterov});
                            },
                        .scratch = [n](DType) { return OptimizerScratch(n); }});
    }
  }
}

TEST(Optimizer, ScaleByNormAgreesAcrossStorageTypesAndThreads) {
  for (const Shape& shape : {Shape{1, 1, 1}, Shape{3, 5, 7}, Shape{2, 100, 130}}) {
    testing::CheckOp({.name = "scaling by the norm " + shape.ToString(),
                      .operands = {{.name = "x",
                                    .role = Role::kInputOutput,
                                    .shape = shape,
                                    .fill = FillW,
                                    .value_units = 3,
                                    .tensor_units = 0},
                                   Scalars("norm", shape[0], Role::kInput, FillNorm)},
                      .run = [](const Context& c, const std::vector<Tensor>& t) {
                        ScaleByNorm(c, {t[0], t[1], 1e-5});
                      }});
  }
}

TEST(Optimizer, NewtonSchulzPolynomialAgreesAcrossStorageTypesAndThreads) {
  for (const Shape& shape : {Shape{1, 1, 1}, Shape{3, 7, 7}, Shape{2, 100, 100}}) {
    testing::CheckOp(
        {.name = "Newton-Schulz polynomial " + shape.ToString(),
         .operands = {{.name = "x", .shape = shape, .fill = FillW},
                      {.name = "y", .role = Role::kInputOutput, .shape = shape, .fill = FillM}},
         .run = [](const Context& c, const std::vector<Tensor>& t) {
           NewtonSchulzPolynomial(c, {t[0], t[1], 3.4445, -4.775, 2.0315});
         }});
  }
}

TEST(Optimizer, HyperballUpdateAgreesAcrossStorageTypesAndThreads) {
  for (const int64_t n : kSizes) {
    testing::CheckOp({.name = "hyperball " + std::to_string(n),
                      .operands = {State("w", n, Role::kInputOutput, FillW),
                                   {.name = "u", .shape = {n}, .fill = FillG}},
                      .run =
                          [](const Context& c, const std::vector<Tensor>& t) {
                            HyperballUpdate(c, {t[0], t[1], 0.02});
                          },
                      .scratch = [n](DType) { return OptimizerScratch(n); }});
  }
}

TEST(Optimizer, AdamAgreesAcrossStorageTypesAndThreads) {
  for (const int64_t n : kSizes) {
    testing::CheckOp({.name = "Adam " + std::to_string(n),
                      .operands = {State("w", n, Role::kInputOutput, FillW),
                                   State("gradient", n, Role::kInput, FillG),
                                   State("m", n, Role::kInputOutput, FillM),
                                   State("v", n, Role::kInputOutput, FillV),
                                   Scalars("clip norm", 1, Role::kInput, FillNorm)},
                      .run =
                          [&](const Context& c, const std::vector<Tensor>& t) {
                            AdamUpdate(c, {t[0], t[1], t[2], t[3], {t[4], 1.0}, kAdam, 0.02});
                          },
                      .bf16 = false});
  }
}

TEST(Optimizer, AdamHAgreesAcrossStorageTypesAndThreads) {
  for (const int64_t n : kSizes) {
    // <w, u> is a sum of terms of both signs: bounded by the largest of the three.
    Operand sums = Scalars("sums", ElementBlocks(n) * kBlockSums, Role::kOutput, nullptr);
    testing::CheckOp(
        {.name = "AdamH's moments " + std::to_string(n),
         .operands = {State("w", n, Role::kInput, FillW), State("gradient", n, Role::kInput, FillG),
                      State("m", n, Role::kInputOutput, FillM),
                      State("v", n, Role::kInputOutput, FillV), sums,
                      Scalars("clip norm", 1, Role::kInput, FillNorm)},
         .run =
             [&](const Context& c, const std::vector<Tensor>& t) {
               AdamHMoments(c, {t[0], t[1], t[2], t[3], t[4], {t[5], 1.0}, kAdam});
             },
         .bf16 = false});
    testing::CheckOp(
        {.name = "AdamH's move " + std::to_string(n),
         .operands = {State("w", n, Role::kInputOutput, FillW), State("m", n, Role::kInput, FillM),
                      State("v", n, Role::kInput, FillV),
                      Scalars("totals", kBlockSums, Role::kInput, FillNorm)},
         .run =
             [&](const Context& c, const std::vector<Tensor>& t) {
               AdamHMove(c, {t[0], t[1], t[2], t[3], kAdam, 0.02});
             },
         .bf16 = false});
  }
}

// The two passes of AdamH, joined as an owner of the whole parameter joins them.
void AdamH(const Buffer& w, const Buffer& g, const Buffer& m, const Buffer& v, const Clip& clip,
           const AdamConstants& constants, double rate) {
  const ScratchContext context(0, DeviceFor(w.dtype()));
  const int64_t blocks = ElementBlocks(w.size());
  Buffer sums(DType::kF64, {blocks, kBlockSums}), totals(DType::kF64, {kBlockSums});
  AdamHMoments(*context,
               {w.tensor(), g.tensor(), m.tensor(), v.tensor(), sums.tensor(), clip, constants});
  for (int64_t i = 0; i < sums.size(); ++i)
    totals.Set(i % kBlockSums, totals.Get(i % kBlockSums) + sums.Get(i));
  AdamHMove(*context, {w.tensor(), m.tensor(), v.tensor(), totals.tensor(), constants, rate});
}

double SquaresOf(const Buffer& x) {
  const ScratchContext context(0, DeviceFor(x.dtype()));
  Buffer sums(DType::kF64, {ElementBlocks(x.size())});
  SumSquares(*context, {x.tensor(), sums.tensor()});
  double total = 0;
  for (const double sum : sums.Values()) total += sum;
  return total;
}

// A pass over ranges that begin at borders of blocks leaves the sums of a pass over all.
TEST(Optimizer, BlocksOfPartsAreBlocksOfTheWhole) {
  const int64_t n = 3 * kBlockElements + 777, first = 2 * kBlockElements;
  Buffer w(DType::kF32, {n}), g(DType::kF32, {n}), m(DType::kF32, {n}), v(DType::kF32, {n});
  Buffer sums(DType::kF64, {4, kBlockSums}), squares(DType::kF64, {4});
  FillW(w);
  FillG(g);
  FillM(m);
  FillV(v);
  const ScratchContext context(0);
  const auto run = [&](int64_t begin, int64_t end) {
    const auto part = [&](const Buffer& x) { return x.tensor().Rows(begin, end - begin); };
    const int64_t block = begin / kBlockElements, blocks = ElementBlocks(end - begin);
    const Buffer m_before(m), v_before(v);
    AdamHMoments(*context, {part(w),
                            part(g),
                            part(m_before),
                            part(v_before),
                            sums.tensor().Rows(block, blocks),
                            {},
                            kAdam});
    SumSquares(*context, {part(g), squares.tensor().Rows(block, blocks)});
  };
  run(0, n);
  const Buffer whole(sums), whole_squares(squares);
  sums.Poison();
  squares.Poison();
  run(0, first);
  run(first, n);
  EXPECT_TRUE(sums.SameBits(whole) && squares.SameBits(whole_squares));
}

// Against plain loops in f64 that follow the formulas step by step.
TEST(Optimizer, AdamHIsAdamsUpdateThenTheSphere) {
  const int64_t n = 1003;
  Buffer w(DType::kF64, {n}), g(DType::kF64, {n}), m(DType::kF64, {n}), v(DType::kF64, {n});
  Buffer norm(DType::kF64, {1}, {16});
  FillW(w);
  FillG(g);
  FillM(m);
  FillV(v);
  const double clip = 0.5 / 4, rate = 0.02;
  std::vector<double> m1, v1, u, moved;
  double ww = 0, uu = 0, after = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double gi = g.Get(i) * clip;
    m1.push_back(0.9 * m.Get(i) + 0.1 * gi);
    v1.push_back(0.98 * v.Get(i) + 0.02 * gi * gi);
    u.push_back(m1.back() / kAdam.correction1 /
                (std::sqrt(v1.back() / kAdam.correction2) + kAdam.eps));
    ww += w.Get(i) * w.Get(i);
    uu += u.back() * u.back();
  }
  const double radius = std::sqrt(ww);
  for (int64_t i = 0; i < n; ++i) {
    const double value = w.Get(i) - rate * radius * u[static_cast<size_t>(i)] / std::sqrt(uu);
    moved.push_back(value);
    after += value * value;
  }
  for (double& value : moved) value *= radius / std::sqrt(after);
  Buffer plain_w(w), plain_m(m), plain_v(v);
  const ScratchContext context(OptimizerScratch(n), CpuDevice());
  const Clip clipping = {norm.tensor(), 0.5};
  AdamH(w, g, m, v, clipping, kAdam, rate);
  testing::ExpectClose("m", m, m1, {.relative = 1e-14, .absolute = 1e-15});
  testing::ExpectClose("v", v, v1, {.relative = 1e-14});
  testing::ExpectClose("w", w, moved, {.relative = 1e-12, .absolute = 1e-13});
  std::vector<double> stepped;
  for (int64_t i = 0; i < n; ++i)
    stepped.push_back(plain_w.Get(i) - rate * u[static_cast<size_t>(i)]);
  AdamUpdate(*context, {plain_w.tensor(), g.tensor(), plain_m.tensor(), plain_v.tensor(), clipping,
                        kAdam, rate});
  testing::ExpectClose("Adam's w", plain_w, stepped, {.relative = 1e-13, .absolute = 1e-14});
  EXPECT_TRUE(plain_m.SameBits(m) && plain_v.SameBits(v));
}

TEST(Optimizer, HyperballKeepsTheNormOverManySteps) {
  const int64_t n = 4096;
  Buffer w(DType::kF32, {n}), u(DType::kF32, {n});
  FillW(w);
  const ScratchContext context(OptimizerScratch(n));
  const double before = std::sqrt(SquaresOf(w));
  for (uint64_t step = 0; step < 10; ++step) {
    FillNormal(u, 100 + step, 3);
    HyperballUpdate(*context, {w.tensor(), u.tensor(), 0.02});
  }
  // Rounding moves each weight by 2^-24 at random: the norm by far less than 1e-6.
  EXPECT_TRUE(std::abs(std::sqrt(SquaresOf(w)) / before - 1) <= 1e-6);
}

// Values chosen so that every result is a whole number, exactly.
TEST(Optimizer, WholeNumbersComeOutWhole) {
  const ScratchContext context(OptimizerScratch(8));
  Buffer g(DType::kF32, {3}, {2, -3, 5}), x(DType::kF32, {3}), norm(DType::kF64, {1});
  {
    Buffer buffer(DType::kF32, {3}, {1, 1, 1});
    MuonMomentum(*context, {.gradient = g.tensor(),
                            .buffer = buffer.tensor(),
                            .x = x.tensor(),
                            .norm_squared = norm.tensor(),
                            .clip = {},
                            .momentum = 2,
                            .nesterov = true});
    testing::ExpectClose("buffer", buffer, {4, -1, 7}, {});
    testing::ExpectClose("x", x, {10, -5, 19}, {});
    EXPECT_EQ(norm.Get(0), 100 + 25 + 361);
  }
  {
    Buffer buffer(DType::kF32, {3}, {1, 1, 1}), clip_norm(DType::kF64, {1}, {64});
    Buffer even(DType::kF32, {3}, {2, -4, 6});
    MuonMomentum(*context, {.gradient = even.tensor(),
                            .buffer = buffer.tensor(),
                            .x = x.tensor(),
                            .norm_squared = norm.tensor(),
                            .clip = {clip_norm.tensor(), 4},  // factor 4 / 8
                            .momentum = 3,
                            .nesterov = false});
    testing::ExpectClose("x", x, {4, 1, 6}, {});
  }
  {
    // betas 0, eps 0, rate 1: u = sign(g).
    Buffer w(DType::kF32, {3}, {10, 20, 30}), m(DType::kF32, {3}), v(DType::kF32, {3});
    AdamUpdate(*context, {w.tensor(), g.tensor(), m.tensor(), v.tensor(), {}, {}, 1});
    testing::ExpectClose("w", w, {9, 21, 29}, {});
    testing::ExpectClose("m", m, {2, -3, 5}, {});
    testing::ExpectClose("v", v, {4, 9, 25}, {});
  }
  {
    // w = (3, 4), u = (0, 5) / 5, rate 2: R = 5, w' = (3, -6), |w'| = sqrt(45).
    Buffer w(DType::kF64, {2}, {3, 4}), u(DType::kF64, {2}, {0, 5});
    const ScratchContext exact(OptimizerScratch(2), CpuDevice());
    HyperballUpdate(*exact, {w.tensor(), u.tensor(), 2});
    testing::ExpectClose("w", w, {3 * 5 / std::sqrt(45.0), -6 * 5 / std::sqrt(45.0)},
                         {.relative = 1e-15 * 4});
  }
  {
    Buffer a(DType::kF32, {1, 2, 2}, {1, 2, 3, 4}), y(DType::kF32, {1, 2, 2}, {5, 6, 7, 8});
    NewtonSchulzPolynomial(*context, {a.tensor(), y.tensor(), 100, 10, 1});
    testing::ExpectClose("polynomial", y, {115, 26, 37, 148}, {});
  }
  {
    Buffer stack(DType::kF32, {2, 1, 2}, {3, 6, 8, 16}), norms(DType::kF64, {2}, {4, 36});
    ScaleByNorm(*context, {stack.tensor(), norms.tensor(), 1});  // by 3 and by 7
    testing::ExpectClose("stack", stack,
                         {1, 2, static_cast<float>(8.0 / 7), static_cast<float>(16.0 / 7)}, {});
  }
}

// cases.md 35: zero gradient and zero momentum: nothing moves, nothing is NaN.
TEST(Optimizer, ZeroInZeroOut) {
  const int64_t n = 12;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Buffer g(DType::kF32, {n}), buffer(DType::kF32, {n}), x(dtype, {1, 4, 3}),
        norm(DType::kF64, {1});
    const ScratchContext context(OptimizerScratch(n));
    MuonMomentum(*context, {.gradient = g.tensor(),
                            .buffer = buffer.tensor(),
                            .x = x.tensor(),
                            .norm_squared = norm.tensor(),
                            .clip = {norm.tensor().Reshape({1}), 0},
                            .momentum = 0.95,
                            .nesterov = true});
    for (const double eps : {1e-5, 0.0}) ScaleByNorm(*context, {x.tensor(), norm.tensor(), eps});
    testing::ExpectClose("x", x, std::vector<double>(static_cast<size_t>(n), 0), {});
    Buffer w(DType::kF32, {n});
    FillW(w);
    const Buffer before(w);
    HyperballUpdate(*context, {w.tensor(), x.tensor(), 0.02});
    EXPECT_TRUE(w.SameBits(before));
  }
  const AdamConstants tiny = {
      .beta1 = 0.9, .beta2 = 0.98, .eps = 1e-20, .correction1 = 0.1, .correction2 = 0.02};
  Buffer w(DType::kF32, {n}), g(DType::kF32, {n}), m(DType::kF32, {n}), v(DType::kF32, {n});
  Buffer zero(DType::kF64, {1}, {0});
  FillW(w);
  const Buffer before(w);
  const ScratchContext context(OptimizerScratch(n));
  const Clip clip = {zero.tensor(), 1};  // a norm of zero clips nothing
  AdamUpdate(*context, {w.tensor(), g.tensor(), m.tensor(), v.tensor(), clip, tiny, 0.01});
  EXPECT_TRUE(w.SameBits(before));
  AdamH(w, g, m, v, clip, tiny, 0.01);
  EXPECT_TRUE(w.SameBits(before));
  // A zero matrix on the sphere of radius zero stays one.
  Buffer none(DType::kF32, {n}), one(DType::kF32, {n});
  FillG(one);
  HyperballUpdate(*context, {none.tensor(), one.tensor(), 0.02});
  testing::ExpectClose("w", none, std::vector<double>(static_cast<size_t>(n), 0), {});
}

// cases.md 44: eps joins sqrt(v / correction2), after the correction: the other way gives 0.18.
TEST(Optimizer, AdamAddsEpsAfterTheBiasCorrection) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    Buffer w(dtype, {1}), g(dtype, {1}, {1e-8}), m(dtype, {1}), v(dtype, {1});
    const ScratchContext context(OptimizerScratch(1), DeviceFor(dtype));
    AdamUpdate(*context,
               {w.tensor(),
                g.tensor(),
                m.tensor(),
                v.tensor(),
                {},
                {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .correction1 = 0.1, .correction2 = 0.05},
                1});
    // A handful of f32 roundings.
    testing::ExpectClose("w", w, {-0.5}, {.relative = dtype == DType::kF32 ? 6e-7 : 1e-12});
  }
}

// eps = 1e-20 beside gradients of 1e-15: nothing is flushed to zero on the way.
TEST(Optimizer, TinyGradientsAndTinyEpsKeepTheirRatio) {
  Buffer w(DType::kF32, {2}), g(DType::kF32, {2}, {1e-15, 1e-24}), m(DType::kF32, {2}),
      v(DType::kF32, {2});
  const ScratchContext context(OptimizerScratch(2));
  AdamUpdate(*context,
             {w.tensor(),
              g.tensor(),
              m.tensor(),
              v.tensor(),
              {},
              {.beta1 = 0.9, .beta2 = 0.98, .eps = 1e-20, .correction1 = 0.1, .correction2 = 0.02},
              1});
  // 1e-15 / (1e-15 + 1e-20); g^2 = 1e-48 is below f32: 1e-24 / 1e-20.
  testing::ExpectClose("w", w, {-1 / (1 + 1e-5), -1e-4}, {.relative = 1e-5});
}

TEST(OptimizerDeathTest, WrongShapesAndStepsAreNamed) {
  Buffer w(DType::kF32, {3}), other(DType::kF32, {4}), m(DType::kF32, {3}), v(DType::kF32, {3});
  Buffer g(DType::kF32, {3});
  const ScratchContext context(OptimizerScratch(3));
  EXPECT_DEATH(
      AdamUpdate(*context, {w.tensor(), other.tensor(), m.tensor(), v.tensor(), {}, {}, 1}),
      "4 against 3");
  EXPECT_DEATH(AdamUpdate(*context, {w.tensor(),
                                     g.tensor(),
                                     m.tensor(),
                                     v.tensor(),
                                     {},
                                     {.beta1 = 0, .beta2 = 0, .eps = 0, .correction1 = 0},
                                     1}),
               "steps count from 1");
  const ScratchContext none(0);
  EXPECT_DEATH(HyperballUpdate(*none, {w.tensor(), g.tensor(), 1}),
               "more scratch than was planned");
  Buffer sums(DType::kF64, {2});
  EXPECT_DEATH(SumSquares(*none, {w.tensor(), sums.tensor()}), "2 against 1");
}

}  // namespace
}  // namespace overtok
