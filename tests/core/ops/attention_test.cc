// Attention against its definition in f64, against central differences, f32 and bf16 against f64,
// one thread against two, and the mask bit by bit.
#include "core/ops/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "hwy/targets.h"
#include "tests/core/ops/attention_reference.h"
#include "tests/core/ops/op_harness.h"

namespace overtok {
namespace {

using testing::AttentionShape;
using testing::AttentionValues;
using testing::Buffer;
using testing::ScratchContext;

enum class Documents { kOne, kTwo, kLong, kTiny, kEach, kUneven };

// Segment ids of a window; they rise by uneven steps, as they may.
std::vector<int32_t> Segments(int64_t batch, int64_t length, Documents documents) {
  std::vector<int32_t> ids;
  for (int64_t b = 0; b < batch; ++b) {
    int32_t id = static_cast<int32_t>(b);
    for (int64_t i = 0; i < length; ++i) {
      const bool border =
          (documents == Documents::kTwo && i == length / 2 + b) ||
          (documents == Documents::kLong && i % 71 == 70 - b) ||
          (documents == Documents::kTiny && (i % 7 == 3 || i % 5 == b)) ||
          // Of one position, ending inside tiles, and longer than a tile.
          (documents == Documents::kUneven && (i <= 2 + b || i == 70 || i == 71 || i == 100)) ||
          documents == Documents::kEach;
      if (i > 0 && border) id += 1 + static_cast<int32_t>(i % 3);
      ids.push_back(id);
    }
  }
  return ids;
}

struct Case {
  int64_t batch, length, heads, kv_heads, width;
  Documents documents;
};

// Tiles are 64 by 64: lengths below, at, above and across them; widths that are no whole vector.
// With 8 or more windows times key/value heads the CPU's backward pass works in one part, else in
// several.
const Case kCases[] = {
    {1, 1, 1, 1, 8, Documents::kOne},        {2, 5, 2, 1, 6, Documents::kTwo},
    {1, 64, 2, 2, 16, Documents::kOne},      {2, 65, 4, 2, 8, Documents::kTwo},
    {1, 130, 3, 1, 10, Documents::kLong},    {2, 200, 2, 2, 24, Documents::kTiny},
    {1, 200, 2, 1, 34, Documents::kOne},     {1, 96, 2, 1, 2, Documents::kEach},
    {1, 150, 2, 1, 256, Documents::kTwo},    {3, 257, 4, 2, 64, Documents::kLong},
    {2, 140, 8, 4, 16, Documents::kLong},    {1, 290, 4, 1, 64, Documents::kUneven},
    {1, 200, 2, 1, 128, Documents::kUneven}, {1, 150, 2, 2, 96, Documents::kTiny},
    {2, 135, 2, 1, 40, Documents::kUneven},
};

// Devices other than the CPU take widths up to 128; see WidthsBeyondADeviceAreNamed. The two
// largest cases, which are about the CPU's parts, would take most of the emulation's time.
bool Taken(const Case& c) {
  return testing::TestsCpu() || (c.width <= 128 && c.batch * c.length * c.heads <= 1200);
}

AttentionShape ShapeOf(const Case& c) {
  return {c.batch,
          c.length,
          c.heads,
          c.kv_heads,
          c.width,
          Segments(c.batch, c.length, c.documents),
          1 / std::sqrt(static_cast<double>(c.width))};
}

std::string NameOf(const Case& c) {
  return "B" + std::to_string(c.batch) + " S" + std::to_string(c.length) + " H" +
         std::to_string(c.heads) + " K" + std::to_string(c.kv_heads) + " D" +
         std::to_string(c.width) + " documents " + std::to_string(static_cast<int>(c.documents));
}

// The tensors of one problem, outputs poisoned.
struct Problem {
  Problem(const AttentionShape& of, DType dtype, double spread = 1)
      : shape(of),
        q(dtype, {of.batch * of.length, of.heads, of.width}),
        k(dtype, {of.batch * of.length, of.kv_heads, of.width}),
        v(dtype, k.shape()),
        dout(dtype, q.shape()),
        o(dtype, q.shape()),
        dq(dtype, q.shape()),
        dk(dtype, k.shape()),
        dv(dtype, k.shape()),
        segments(DType::kI32, {of.batch, of.length},
                 std::vector<double>(of.segments.begin(), of.segments.end())),
        lse(dtype == DType::kF64 ? DType::kF64 : DType::kF32, {of.batch, of.heads, of.length}) {
    FillNormal(q, 1, spread);
    FillNormal(k, 2, 1);
    FillNormal(v, 3, 1);
    FillNormal(dout, 4, 1);
    for (Buffer* output : {&o, &lse, &dq, &dk, &dv}) output->Poison();
  }
  // f64 is the CPU's alone.
  Device* device() const {
    return q.dtype() == DType::kF64 ? CpuDevice() : testing::TestedDevice();
  }
  int64_t Scratch() const {
    return AttentionScratch(shape.batch, shape.length, shape.heads, shape.kv_heads, shape.width,
                            q.dtype(), device()->attention());
  }
  void Forward() {
    const ScratchContext context(Scratch(), device());
    AttentionForward(*context, {q.tensor(), k.tensor(), v.tensor(), segments.tensor(), o.tensor(),
                                lse.tensor(), shape.scale});
    EXPECT_TRUE(context.GuardsIntact());
  }
  void Backward() {
    const ScratchContext context(Scratch(), device());
    AttentionBackward(
        *context, {dout.tensor(), q.tensor(), k.tensor(), v.tensor(), segments.tensor(), o.tensor(),
                   lse.tensor(), dq.tensor(), dk.tensor(), dv.tensor(), shape.scale});
    EXPECT_TRUE(context.GuardsIntact());
  }
  AttentionValues Reference() const {
    AttentionValues values;
    values.q = q.Values();
    values.k = k.Values();
    values.v = v.Values();
    values.dout = dout.Values();
    ReferenceAttention(shape, &values);
    return values;
  }

  AttentionShape shape;
  Buffer q, k, v, dout, o, dq, dk, dv, segments, lse;
};

void ExpectReference(const std::string& what, const Problem& problem, double relative) {
  const AttentionValues expected = problem.Reference();
  const auto check = [&](const char* name, const Buffer& actual, const std::vector<double>& value) {
    // Relative to the largest gradient: a sum that cancels keeps the error of its terms.
    ExpectClose(what + " " + name, actual, value,
                {.absolute = relative * std::max(1.0, testing::MaxAbs(value))});
  };
  check("o", problem.o, expected.o);
  check("lse", problem.lse, expected.lse);
  check("dq", problem.dq, expected.dq);
  check("dk", problem.dk, expected.dk);
  check("dv", problem.dv, expected.dv);
}

TEST(AttentionTest, IsItsDefinition) {
  for (const Case& c : kCases) {
    Problem problem(ShapeOf(c), DType::kF64);
    problem.Forward();
    problem.Backward();
    // Sums of at most 257 terms of order 1, rounded at 1.1e-16 each.
    ExpectReference(NameOf(c), problem, 1e-13);
  }
}

// Chooses the kernels of another instruction set for a scope.
class TargetScope {
 public:
  explicit TargetScope(int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
  }
  ~TargetScope() {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().DeInit();
  }
  TargetScope(const TargetScope&) = delete;
  TargetScope& operator=(const TargetScope&) = delete;
};

TEST(AttentionTest, EveryInstructionSetComputesTheSame) {
  if (!testing::TestsCpu()) GTEST_SKIP() << "instruction sets are the CPU's";
  for (const int64_t target : {HWY_AVX3, HWY_AVX2, HWY_SCALAR}) {
    if (target != HWY_SCALAR && (hwy::SupportedTargets() & target) == 0) continue;
    const TargetScope scope(target);
    for (const Case& c : kCases) {
      if (c.length * c.width > 4096) continue;  // the scalar kernels are slow
      for (const DType dtype : {DType::kF32, DType::kF64}) {
        Problem problem(ShapeOf(c), dtype);
        problem.Forward();
        problem.Backward();
        // As in the other tests of either type.
        ExpectReference(std::string(hwy::TargetName(target)) + " " + NameOf(c), problem,
                        dtype == DType::kF64 ? 1e-13 : 4e-6);
      }
    }
  }
}

TEST(AttentionTest, LargeScoresNeitherOverflowNorVanish) {
  for (const DType dtype : {DType::kF64, DType::kF32}) {
    AttentionShape shape = ShapeOf({2, 130, 2, 1, 16, Documents::kLong});
    Problem problem(shape, dtype, /*spread=*/60);
    const AttentionValues expected = problem.Reference();
    EXPECT_GE(testing::MaxAbs(expected.lse), 200);
    problem.Forward();
    problem.Backward();
    // A score of 200 is rounded at 200 * 2^-24 = 1.2e-5 in f32, and so is its probability.
    ExpectReference(NameOf(dtype), problem, dtype == DType::kF64 ? 1e-12 : 2e-4);
  }
}

// Forward and backward in f32 and bf16 against f64, with one and with two threads, between guards.
TEST(AttentionTest, StorageTypesAgree) {
  for (const Case& c : kCases) {
    if (!Taken(c)) continue;
    const AttentionShape shape = ShapeOf(c);
    Problem exact(shape, DType::kF64);
    exact.Forward();
    const auto fill = [](const Buffer& from) {
      return [&from](Buffer& to) {
        for (int64_t i = 0; i < to.size(); ++i) to.Set(i, from.Get(i));
      };
    };
    using testing::Role;
    using testing::Storage;
    const auto input = [&](const char* name, const Buffer& from) {
      return testing::Operand{.name = name, .shape = from.shape(), .fill = fill(from)};
    };
    // On tensor cores probabilities and the gradients of scores are bf16, off by half a unit each.
    // An output that is an average with them as weights is off by at most half a unit of the
    // largest value, which positions alone in their document copy; a sum of n such terms of either
    // sign by about sqrt(n / 12) units of one term, where the sum itself is sqrt(n) terms, and its
    // largest element several times that: below 1 unit of the largest value with room.
    //
    // Scores of order 10 are rounded at 10 * 2^-24, which their exponentials inherit: tens of
    // units, relative to the largest value.
    const auto output = [&](const char* name, const Buffer& like) {
      return testing::Operand{.name = name,
                              .role = Role::kOutput,
                              .shape = like.shape(),
                              .fill = {},
                              .value_units = 8,
                              .tensor_units = 32,
                              .bf16_value_units = 2.02,
                              .bf16_tensor_units = testing::TestsCpu() ? 0.01 : 1};
    };
    testing::Operand segments = input("segments", exact.segments);
    segments.storage = Storage::kFixed;
    segments.fixed = DType::kI32;
    testing::Operand lse = output("lse", exact.lse);
    lse.storage = Storage::kStatistic;
    lse.bf16_value_units = lse.bf16_tensor_units = 0;
    const auto scratch = [&](DType dtype) {
      return AttentionScratch(c.batch, c.length, c.heads, c.kv_heads, c.width, dtype,
                              testing::TestedDevice()->attention());
    };
    testing::CheckOp(
        {.name = "attention forward " + NameOf(c),
         .operands = {input("q", exact.q), input("k", exact.k), input("v", exact.v), segments,
                      output("o", exact.o), lse},
         .run =
             [&](const Context& context, const std::vector<Tensor>& t) {
               AttentionForward(context, {t[0], t[1], t[2], t[3], t[4], t[5], shape.scale});
             },
         .scratch = scratch});
    // Gradients that are exactly 0 leave nothing to be relative to (see AloneAPosition...).
    if (c.documents == Documents::kEach) continue;
    lse.role = Role::kInput;
    lse.fill = fill(exact.lse);
    testing::CheckOp(
        {.name = "attention backward " + NameOf(c),
         .operands = {input("dout", exact.dout), input("q", exact.q), input("k", exact.k),
                      input("v", exact.v), segments, input("o", exact.o), lse,
                      output("dq", exact.dq), output("dk", exact.dk), output("dv", exact.dv)},
         .run =
             [&](const Context& context, const std::vector<Tensor>& t) {
               AttentionBackward(context, {t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8],
                                           t[9], shape.scale});
             },
         .scratch = scratch});
  }
}

TEST(AttentionTest, GradientsAreCentralDifferences) {
  const testing::ThreadScope one_thread(1);  // hundreds of tiny calls
  for (const Case& c :
       {Case{1, 6, 2, 1, 4, Documents::kTwo}, Case{2, 70, 4, 2, 6, Documents::kLong},
        Case{1, 67, 2, 2, 3, Documents::kOne}}) {
    Problem problem(ShapeOf(c), DType::kF64);
    problem.Forward();
    problem.Backward();
    const auto loss = [&] {
      problem.Forward();
      return Dot(problem.dout, problem.o);
    };
    CheckGradient(NameOf(c) + " dq", problem.q, problem.dq, loss, 16);
    CheckGradient(NameOf(c) + " dk", problem.k, problem.dk, loss, 16);
    CheckGradient(NameOf(c) + " dv", problem.v, problem.dv, loss, 16);
  }
}

// A key that a query may not see must not reach it, even as a NaN, and one that it may see must. A
// value, finite as it has to be, meets probabilities of exactly 0.
TEST(AttentionTest, UnseenKeysNeverReachAQuery) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    const int64_t length = 150, width = 8;
    AttentionShape shape = ShapeOf({1, length, 2, 1, width, Documents::kOne});
    for (int64_t i = 0; i < length; ++i) shape.segments[static_cast<size_t>(i)] = i < 80 ? 3 : 9;
    Problem clean(shape, dtype), dirty(shape, dtype);
    clean.Forward();
    for (const int64_t key : {40, 100}) {
      dirty.k.Set(key * width + 1, std::numeric_limits<double>::quiet_NaN());
      dirty.v.Set(key * width + 2, 1e4);
    }
    dirty.Forward();
    for (int64_t i = 0; i < length; ++i) {
      const bool sees = (i >= 40 && i < 80) || i >= 100;
      for (int64_t e = 0; e < 2 * width; ++e) {
        const int64_t at = i * 2 * width + e;
        if (sees) {
          EXPECT_TRUE(std::isnan(dirty.o.Get(at))) << NameOf(dtype) << " position " << i;
        } else {
          EXPECT_EQ(dirty.o.Get(at), clean.o.Get(at)) << NameOf(dtype) << " position " << i;
        }
      }
    }
  }
}

// The same for the backward pass: a document's gradients do not depend on another's values.
TEST(AttentionTest, DocumentsDoNotMeetInTheGradients) {
  const int64_t length = 150, width = 16, border = 77;
  AttentionShape shape = ShapeOf({1, length, 2, 1, width, Documents::kOne});
  for (int64_t i = 0; i < length; ++i) shape.segments[static_cast<size_t>(i)] = i < border ? 0 : 1;
  Problem one(shape, DType::kF32), two(shape, DType::kF32);
  for (Buffer* x : {&two.q, &two.dout}) {
    for (int64_t i = border * 2 * width; i < x->size(); ++i) x->Set(i, -3 * x->Get(i));
  }
  for (Buffer* x : {&two.k, &two.v}) {
    for (int64_t i = border * width; i < x->size(); ++i) x->Set(i, -3 * x->Get(i));
  }
  for (Problem* problem : {&one, &two}) {
    problem->Forward();
    problem->Backward();
  }
  for (int64_t i = 0; i < border * 2 * width; ++i) EXPECT_EQ(one.dq.Get(i), two.dq.Get(i));
  for (int64_t i = 0; i < border * width; ++i) {
    EXPECT_EQ(one.dk.Get(i), two.dk.Get(i));
    EXPECT_EQ(one.dv.Get(i), two.dv.Get(i));
  }
}

TEST(AttentionTest, AloneAPositionCopiesItsValue) {
  const Case c{2, 70, 2, 1, 12, Documents::kEach};
  Problem problem(ShapeOf(c), DType::kF32);
  problem.Forward();
  problem.Backward();
  for (int64_t token = 0; token < 140; ++token) {
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t d = 0; d < 12; ++d) {
        EXPECT_EQ(problem.o.Get((token * 2 + h) * 12 + d), problem.v.Get(token * 12 + d));
      }
    }
  }
  // A probability of 1 whatever the scores: nothing flows to queries and keys, up to the rounding
  // of o . dout.
  EXPECT_LE(testing::MaxAbs(problem.dq.Values()), 1e-5);
  EXPECT_LE(testing::MaxAbs(problem.dk.Values()), 1e-5);
}

TEST(AttentionTest, EmptyInputsAreLeftAlone) {
  Problem problem(ShapeOf({0, 5, 2, 1, 4, Documents::kOne}), DType::kF32);
  problem.Forward();
  problem.Backward();
  Problem no_positions(ShapeOf({2, 0, 2, 1, 4, Documents::kOne}), DType::kF32);
  no_positions.Forward();
}

TEST(AttentionDeathTest, WidthsBeyondADeviceAreNamed) {
  if (testing::TestsCpu()) GTEST_SKIP() << "the CPU takes every width";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Problem wide(ShapeOf({1, 4, 2, 1, 130, Documents::kOne}), dtype);
    EXPECT_DEATH(wide.Forward(), "even width up to 128, not 130");
    Problem odd(ShapeOf({1, 4, 2, 1, 7, Documents::kOne}), dtype);
    EXPECT_DEATH(odd.Backward(), "even width up to 128, not 7");
  }
}

TEST(AttentionDeathTest, WrongArgumentsAbort) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Problem problem(ShapeOf({1, 4, 2, 1, 4, Documents::kOne}), DType::kF32);
  Buffer three_heads(DType::kF32, {4, 3, 4});
  Buffer halves(DType::kBF16, problem.k.shape());
  const ScratchContext context(problem.Scratch());
  const auto forward = [&](const Buffer& k, const Buffer& v, const Buffer& o) {
    AttentionForward(*context, {problem.q.tensor(), k.tensor(), v.tensor(),
                                problem.segments.tensor(), o.tensor(), problem.lse.tensor(), 1});
  };
  EXPECT_DEATH(forward(three_heads, problem.v, problem.o), "2 query heads over 3");
  EXPECT_DEATH(forward(problem.k, halves, problem.o), "v is bf16, expected f32");
  EXPECT_DEATH(forward(problem.k, problem.v, problem.q), "may not alias");
}

}  // namespace
}  // namespace overtok
