// Passes that change weights or states, with the flag that stops them: set, no byte of any operand
// changes, whatever the gradients hold; clear, they do what they do without it, bit for bit.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "core/ops/optimizer.h"
#include "tests/core/ops/op_harness.h"

namespace overtok {
namespace {

using testing::Buffer;
using testing::FillNormal;
using testing::FillUniform;
using testing::ScratchContext;

// A parameter with all that a pass may read or write.
struct Operands {
  explicit Operands(int64_t n, DType update)
      : w(DType::kF32, {n}),
        gradient(DType::kF32, {n}),
        m(DType::kF32, {n}),
        v(DType::kF32, {n}),
        u(update, {n}),
        sums(DType::kF64, {ElementBlocks(n), kBlockSums}),
        totals(DType::kF64, {kBlockSums}, {9, 0.5, 4}),
        norm(DType::kF64, {1}, {16}),
        norm_of_u(DType::kF64, {1}, {7}) {
    FillNormal(w, 1, 1);
    FillNormal(gradient, 2, 0.1);
    FillNormal(m, 3, 0.1);
    FillUniform(v, 4, 0.001, 0.02);
    FillNormal(u, 5, 0.1);
    FillNormal(sums, 6, 1);
  }
  bool SameBits(const Operands& o) const {
    return w.SameBits(o.w) && gradient.SameBits(o.gradient) && m.SameBits(o.m) && v.SameBits(o.v) &&
           u.SameBits(o.u) && sums.SameBits(o.sums) && totals.SameBits(o.totals) &&
           norm.SameBits(o.norm) && norm_of_u.SameBits(o.norm_of_u);
  }

  Buffer w, gradient, m, v, u, sums, totals, norm, norm_of_u;
};

const AdamConstants kAdam = {
    .beta1 = 0.9, .beta2 = 0.98, .eps = 1e-8, .correction1 = 0.271, .correction2 = 0.0588};

struct Pass {
  std::string name;
  std::function<void(const Context&, const Operands&, const Tensor&)> run;
};

const std::vector<Pass>& Passes() {
  static const std::vector<Pass> passes = {
      {"Adam",
       [](const Context& c, const Operands& o, const Tensor& halted) {
         AdamUpdate(c, {o.w.tensor(),
                        o.gradient.tensor(),
                        o.m.tensor(),
                        o.v.tensor(),
                        {o.norm.tensor(), 1, halted},
                        kAdam,
                        0.02});
       }},
      {"Adam without a clip",
       [](const Context& c, const Operands& o, const Tensor& halted) {
         AdamUpdate(c, {o.w.tensor(),
                        o.gradient.tensor(),
                        o.m.tensor(),
                        o.v.tensor(),
                        {Tensor(), 0, halted},
                        kAdam,
                        0.02});
       }},
      {"AdamH's moments",
       [](const Context& c, const Operands& o, const Tensor& halted) {
         AdamHMoments(c, {o.w.tensor(),
                          o.gradient.tensor(),
                          o.m.tensor(),
                          o.v.tensor(),
                          o.sums.tensor(),
                          {o.norm.tensor(), 1, halted},
                          kAdam});
       }},
      {"AdamH's move",
       [](const Context& c, const Operands& o, const Tensor& halted) {
         AdamHMove(
             c, {o.w.tensor(), o.m.tensor(), o.v.tensor(), o.totals.tensor(), kAdam, 0.02, halted});
       }},
      {"Muon's momentum",
       [](const Context& c, const Operands& o, const Tensor& halted) {
         MuonMomentum(c, {.gradient = o.gradient.tensor(),
                          .buffer = o.m.tensor(),
                          .x = o.u.tensor(),
                          .norm_squared = o.norm_of_u.tensor(),
                          .clip = {o.norm.tensor(), 1, halted},
                          .momentum = 0.95});
       }},
      {"hyperball",
       [](const Context& c, const Operands& o, const Tensor& halted) {
         HyperballUpdate(c, {o.w.tensor(), o.u.tensor(), 0.02, halted});
       }},
  };
  return passes;
}

// Below a pack, above blocks of the kernels (4,096) and of sums (16,384).
const std::vector<int64_t> kSizes = {3, 1000, 4099, 20005};

void ForEachCase(const std::function<void(const Pass&, const Operands&)>& body) {
  for (const Pass& pass : Passes()) {
    for (const DType update : {DType::kF32, DType::kBF16}) {
      for (const int64_t n : kSizes) {
        SCOPED_TRACE(pass.name + ", " + NameOf(update) + ", " + std::to_string(n));
        body(pass, Operands(n, update));
      }
    }
  }
}

void RunPass(const Pass& pass, const Operands& operands, const Tensor& halted) {
  const ScratchContext context(OptimizerScratch(operands.w.size()));
  pass.run(*context, operands, halted);
}

TEST(OptimizerHalted, WritesNothingWhereItIsSet) {
  ForEachCase([](const Pass& pass, const Operands& operands) {
    for (const double set : {1.0, 256.0, 4294967295.0}) {
      const Buffer halted(DType::kU32, {1}, {set});
      const Operands changed = operands;
      RunPass(pass, changed, halted.tensor());
      EXPECT_TRUE(changed.SameBits(operands)) << set;
      EXPECT_EQ(halted.Get(0), set);
    }
  });
}

TEST(OptimizerHalted, NothingReachesWeightsFromGradientsThatAreNotFinite) {
  ForEachCase([](const Pass& pass, const Operands& operands) {
    Operands bad = operands;
    for (Buffer* buffer : {&bad.gradient, &bad.totals, &bad.norm})
      buffer->Set(0, std::numeric_limits<double>::quiet_NaN());
    const Operands before = bad;
    const Buffer halted(DType::kU32, {1}, {1});
    RunPass(pass, bad, halted.tensor());
    EXPECT_TRUE(bad.SameBits(before));
  });
}

TEST(OptimizerHalted, ChangesNoBitWhereItIsClear) {
  ForEachCase([](const Pass& pass, const Operands& operands) {
    const Operands without = operands, clear = operands;
    const Buffer halted(DType::kU32, {1}, {0});
    RunPass(pass, without, Tensor());
    RunPass(pass, clear, halted.tensor());
    EXPECT_FALSE(without.SameBits(operands));
    EXPECT_TRUE(clear.SameBits(without));
  });
}

TEST(OptimizerHaltedDeathTest, WhatIsNoFlag) {
  const Operands operands(3, DType::kF32);
  const Buffer wide(DType::kU32, {2}), number(DType::kF32, {1});
  for (const Pass& pass : Passes()) {
    SCOPED_TRACE(pass.name);
    EXPECT_DEATH(RunPass(pass, operands, wide.tensor()), "halted is \\[2\\], expected \\[1\\]");
    EXPECT_DEATH(RunPass(pass, operands, number.tensor()), "halted is f32, expected u32");
  }
}

}  // namespace
}  // namespace overtok
