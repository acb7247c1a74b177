// The matrix product against sums in f64 with an error bound for every element, over transposes,
// dtypes, batches, alpha and accumulation; the library's way and the tiled way.
#include "core/ops/matmul.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "core/cpu/matmul.h"
#include "tests/core/ops/op_harness.h"

namespace overtok {
namespace {

using testing::Buffer;

struct Types {
  DType operand, result;
};
const Types kTypes[] = {{DType::kF32, DType::kF32},
                        {DType::kBF16, DType::kBF16},
                        {DType::kBF16, DType::kF32},
                        {DType::kF64, DType::kF64}};

struct Case {
  int64_t batch, m, n, k;  // batch 0: two dimensions
  bool trans_a = false, trans_b = false, accumulate = false;
  float alpha = 1;
  Types types = kTypes[0];
};

std::string NameOf(const Case& c) {
  return std::to_string(c.batch) + " x " + std::to_string(c.m) + " x " + std::to_string(c.n) +
         " x " + std::to_string(c.k) + (c.trans_a ? " T" : " N") + (c.trans_b ? "T" : "N") +
         (c.accumulate ? " accumulate" : "") + " alpha " + std::to_string(c.alpha) + " " +
         NameOf(c.types.operand) + " -> " + NameOf(c.types.result);
}

Shape ShapeOf(int64_t batch, int64_t rows, int64_t columns) {
  return batch == 0 ? Shape{rows, columns} : Shape{batch, rows, columns};
}

struct Problem {
  explicit Problem(const Case& of)
      : c(of),
        a(of.types.operand,
          of.trans_a ? ShapeOf(of.batch, of.k, of.m) : ShapeOf(of.batch, of.m, of.k)),
        b(of.types.operand,
          of.trans_b ? ShapeOf(of.batch, of.n, of.k) : ShapeOf(of.batch, of.k, of.n)),
        out(of.types.result, ShapeOf(of.batch, of.m, of.n)) {
    FillNormal(a, 1, 1);
    FillNormal(b, 2, 1);
    if (c.accumulate) {
      FillNormal(out, 3, 10);
    } else {
      out.Poison();
    }
  }
  MatmulArgs Args() const {
    return {a.tensor(), b.tensor(), out.tensor(), c.trans_a, c.trans_b, c.accumulate, c.alpha};
  }
  // Every element against its sum in f64. A sum of k products errs by at most k + 2 roundings of
  // the sum of their magnitudes whatever the order (Higham, section 3.1), then once in storage.
  void Check(const std::function<void()>& run, const std::string& what) {
    const std::vector<double> before = out.Values();
    run();
    const std::vector<double> x = a.Values(), y = b.Values(), actual = out.Values();
    const double math = std::ldexp(1.0, c.types.operand == DType::kF64 ? -53 : -24);
    const double storage = c.types.result == DType::kBF16 ? std::ldexp(1.0, -8) : 2 * math;
    int64_t wrong = 0;
    for (int64_t e = 0; e < out.size(); ++e) {
      const int64_t index = e / (c.m * c.n), i = e / c.n % c.m, j = e % c.n;
      double sum = 0, magnitude = 0;
      for (int64_t t = 0; t < c.k; ++t) {
        const int64_t of_a = index * c.m * c.k + (c.trans_a ? t * c.m + i : i * c.k + t);
        const int64_t of_b = index * c.k * c.n + (c.trans_b ? j * c.k + t : t * c.n + j);
        const double product = x[static_cast<size_t>(of_a)] * y[static_cast<size_t>(of_b)];
        sum += product;
        magnitude += std::abs(product);
      }
      const double alpha = static_cast<double>(c.alpha);
      const double old = c.accumulate ? before[static_cast<size_t>(e)] : 0;
      const double expected = alpha * sum + old;
      const double bound =
          static_cast<double>(c.k + 2) * math * (std::abs(alpha) * magnitude + std::abs(old)) +
          storage * std::abs(expected);
      if (!(std::abs(actual[static_cast<size_t>(e)] - expected) <= bound) && ++wrong == 1) {
        ADD_FAILURE() << what << " " << NameOf(c) << " at " << e << ": " << out.Get(e)
                      << ", expected " << expected << " within " << bound;
      }
    }
    EXPECT_EQ(wrong, 0) << what << " " << NameOf(c);
    EXPECT_TRUE(out.GuardsIntact() && a.GuardsIntact() && b.GuardsIntact()) << NameOf(c);
  }

  Case c;
  Buffer a, b, out;
};

std::vector<Case> AllForms(int64_t batch, int64_t m, int64_t n, int64_t k) {
  std::vector<Case> cases;
  for (const Types types : kTypes) {
    for (int form = 0; form < 16; ++form) {
      cases.push_back({batch, m, n, k, (form & 1) != 0, (form & 2) != 0, (form & 4) != 0,
                       (form & 8) != 0 ? -0.375f : 1.0f, types});
    }
  }
  return cases;
}

TEST(MatmulTest, IsTheSumOfProducts) {
  for (const auto& [batch, m, n, k] : std::vector<std::array<int64_t, 4>>{{0, 1, 1, 1},
                                                                          {0, 1, 33, 7},
                                                                          {0, 17, 1, 65},
                                                                          {0, 5, 300, 3},
                                                                          {0, 64, 48, 130},
                                                                          {3, 7, 9, 11},
                                                                          {1, 4, 4, 4},
                                                                          {2, 1, 5, 257}}) {
    for (const Case& c : AllForms(batch, m, n, k)) {
      Problem problem(c);
      problem.Check([&] { Matmul(CpuContext(), problem.Args()); }, "matmul");
    }
  }
}

// Sizes at which the CPU divides a product by rows and by terms.
TEST(MatmulTest, DividedProductsAreWhole) {
  for (const Types types : kTypes) {
    for (const bool accumulate : {false, true}) {
      for (Case c : {Case{0, 3, 2, 20000}, Case{0, 512, 1, 8200}, Case{0, 9001, 3, 4}}) {
        if (c.m == 512 && !accumulate) continue;  // large operands: once is enough
        c.trans_a = c.m > 1000;
        c.accumulate = accumulate;
        c.alpha = 0.5f;
        c.types = types;
        Problem problem(c);
        problem.Check([&] { Matmul(CpuContext(), problem.Args()); }, "matmul");
      }
    }
  }
}

// What runs where oneDNN is missing or lacks the dtype, called by itself.
TEST(MatmulTest, TilesAgreeToo) {
  for (const auto& [batch, m, n, k] : std::vector<std::array<int64_t, 4>>{
           {1, 1, 1, 1}, {1, 390, 129, 5}, {1, 3, 260, 300}, {3, 7, 9, 11}}) {
    for (const Case& c : AllForms(batch, m, n, k)) {
      Problem problem(c);
      const cpu::Product product = {
          .batch = c.batch,
          .m = c.m,
          .n = c.n,
          .k = c.k,
          .a = problem.a.tensor().raw(),
          .b = problem.b.tensor().raw(),
          .c = problem.out.tensor().raw(),
          .operand = c.types.operand,
          .result = c.types.result,
          .a_batch = c.m * c.k,
          .a_row = c.trans_a ? 1 : c.k,
          .a_column = c.trans_a ? c.m : 1,
          .b_batch = c.k * c.n,
          .b_row = c.trans_b ? 1 : c.n,
          .b_column = c.trans_b ? c.k : 1,
          .c_batch = c.m * c.n,
          .c_row = c.n,
          .accumulate = c.accumulate,
          .alpha = c.alpha,
      };
      problem.Check([&] { cpu::TiledProduct(product); }, "tiles");
    }
  }
}

TEST(MatmulTest, RepeatsBitForBitAfterOtherProducts) {
  for (const int threads : {1, 2}) {
    const testing::ThreadScope scope(threads);
    for (const Types types : kTypes) {
      std::vector<Case> cases = {{0, 64, 96, 700}, {2, 33, 65, 129}, {0, 500, 31, 70}};
      std::vector<Buffer> first;
      first.reserve(cases.size());
      for (int repeat = 0; repeat < 3; ++repeat) {
        for (size_t i = 0; i < cases.size(); ++i) {
          cases[i].types = types;
          cases[i].trans_a = i != 0;
          Problem problem(cases[i]);
          Matmul(CpuContext(), problem.Args());
          if (repeat == 0) {
            first.emplace_back(problem.out);
          } else {
            EXPECT_TRUE(first[i].SameBits(problem.out)) << NameOf(cases[i]);
          }
        }
      }
    }
  }
}

// One primitive serves every alpha but 1: the value must not stick.
TEST(MatmulTest, AlphaIsTheOneOfTheCall) {
  for (const float alpha : {0.5f, 2.0f, 1.0f, 0.5f}) {
    Problem problem({.batch = 0, .m = 2, .n = 3, .k = 1, .alpha = alpha});
    for (Buffer* x : {&problem.a, &problem.b}) {
      for (int64_t i = 0; i < x->size(); ++i) x->Set(i, 1);
    }
    Matmul(CpuContext(), problem.Args());
    for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(problem.out.Get(i), static_cast<double>(alpha));
  }
}

TEST(MatmulTest, NanStaysInItsRow) {
  for (const Types types : kTypes) {
    Case c{0, 40, 24, 32};
    c.types = types;
    Problem problem(c);
    problem.a.Set(7 * c.k + 5, std::numeric_limits<double>::quiet_NaN());
    Matmul(CpuContext(), problem.Args());
    for (int64_t e = 0; e < problem.out.size(); ++e) {
      EXPECT_EQ(std::isnan(problem.out.Get(e)), e / c.n == 7) << e;
    }
  }
}

TEST(MatmulTest, EmptyProducts) {
  for (const Types types : kTypes) {
    for (const bool accumulate : {false, true}) {
      // No terms: an empty sum.
      Buffer a(types.operand, {3, 0}), b(types.operand, {0, 4}), c(types.result, {3, 4});
      FillUniform(c, 5, 1, 2);
      const Buffer before(c);
      Matmul(CpuContext(), {a.tensor(), b.tensor(), c.tensor(), false, false, accumulate});
      for (int64_t i = 0; i < c.size(); ++i) {
        EXPECT_EQ(c.Get(i), accumulate ? before.Get(i) : 0.0);
      }
    }
    Buffer a(types.operand, {0, 5}), b(types.operand, {5, 4}), c(types.result, {0, 4});
    Matmul(CpuContext(), {a.tensor(), b.tensor(), c.tensor()});
  }
}

TEST(MatmulDeathTest, WrongArgumentsAbort) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Buffer a(DType::kF32, {3, 4}), b(DType::kF32, {5, 6}), c(DType::kF32, {3, 6});
  EXPECT_DEATH(Matmul(CpuContext(), {a.tensor(), b.tensor(), c.tensor()}),
               "\\[3, 4\\] and \\[5, 6\\]");
  Buffer halves(DType::kBF16, {4, 6});
  EXPECT_DEATH(Matmul(CpuContext(), {a.tensor(), halves.tensor(), c.tensor()}), "f32 and bf16");
  Buffer square(DType::kF32, {3, 3});
  EXPECT_DEATH(Matmul(CpuContext(), {square.tensor(), square.tensor(), square.tensor()}),
               "may not alias");
}

}  // namespace
}  // namespace overtok
