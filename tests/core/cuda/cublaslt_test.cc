// Products of the CUDA backend as it asks cuBLASLt for them, with a stand-in for the library that
// computes on the host: transposes, batches, types, alpha and accumulation against sums in double,
// and that an algorithm is chosen once for each kind of product.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "core/cuda/libraries.h"
#include "core/cuda/matmul.h"
#include "core/device.h"

namespace overtok {
namespace {

// Opens the stand-in in place of cuBLASLt; the workspace is never touched.
bool Started() {
  setenv("OVERTOK_LIBRARY_PATH", OVERTOK_STAND_IN_FOLDER, 1);
  static char workspace[256];
  const absl::Status status = cuda::StartMatmul(workspace, sizeof workspace);
  EXPECT_TRUE(status.ok()) << status;
  return status.ok() && cuda::CublasLtVersion() == 130000;
}

int Choices() {
  int (*choices)() = nullptr;
  const auto library = cuda::OpenLibrary(cuda::CublasLtRequest());
  EXPECT_TRUE(library.ok() && cuda::Resolve(*library, "overtok_stand_in_choices", &choices).ok());
  return choices();
}

template <class T>
std::vector<T> Draw(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, 1);
  std::vector<T> values(static_cast<size_t>(n));
  for (T& value : values) value = static_cast<T>(normal(random));
  return values;
}

struct Case {
  int64_t batch, m, n, k;
  bool trans_a, trans_b, accumulate;
  float alpha;
};

// `unit`: of the result's rounding, once; sums in double lose nothing that shows.
template <class In, class Out>
void Check(const Case& c, double unit) {
  const int64_t batch = c.batch == 0 ? 1 : c.batch;
  std::vector<In> a = Draw<In>(batch * c.m * c.k, 1), b = Draw<In>(batch * c.k * c.n, 2);
  std::vector<Out> out = Draw<Out>(batch * c.m * c.n, 3);
  const std::vector<Out> before = out;
  const auto shape = [&](int64_t rows, int64_t columns) {
    return c.batch == 0 ? Shape{rows, columns} : Shape{c.batch, rows, columns};
  };
  const Context context(CpuDevice());
  cuda::Matmul(context, {.a = Tensor(a.data(), c.trans_a ? shape(c.k, c.m) : shape(c.m, c.k)),
                         .b = Tensor(b.data(), c.trans_b ? shape(c.n, c.k) : shape(c.k, c.n)),
                         .c = Tensor(out.data(), shape(c.m, c.n)),
                         .trans_a = c.trans_a,
                         .trans_b = c.trans_b,
                         .accumulate = c.accumulate,
                         .alpha = c.alpha});
  const auto value = [](auto x) { return double{static_cast<float>(x)}; };
  for (int64_t l = 0; l < batch; ++l) {
    for (int64_t i = 0; i < c.m; ++i) {
      for (int64_t j = 0; j < c.n; ++j) {
        double sum = 0;
        for (int64_t x = 0; x < c.k; ++x) {
          sum +=
              value(
                  a[static_cast<size_t>(l * c.m * c.k + (c.trans_a ? x * c.m + i : i * c.k + x))]) *
              value(
                  b[static_cast<size_t>(l * c.k * c.n + (c.trans_b ? j * c.k + x : x * c.n + j))]);
        }
        const auto at = static_cast<size_t>((l * c.m + i) * c.n + j);
        const double expected = double{c.alpha} * sum + (c.accumulate ? value(before[at]) : 0.0);
        ASSERT_TRUE(std::abs(value(out[at]) - expected) <= unit * std::abs(expected) + 1e-12)
            << "batch " << l << " row " << i << " column " << j << ": " << value(out[at])
            << ", expected " << expected << (c.trans_a ? " T" : " N") << (c.trans_b ? "T" : "N");
      }
    }
  }
}

TEST(CublasLt, TakesTransposesBatchesTypesAlphaAndAccumulation) {
  ASSERT_TRUE(Started());
  for (const int64_t batch : {0, 1, 3}) {
    for (const bool trans_a : {false, true}) {
      for (const bool trans_b : {false, true}) {
        for (const bool accumulate : {false, true}) {
          const Case c = {batch, 5, 7, 3, trans_a, trans_b, accumulate, accumulate ? 0.5F : 1.0F};
          Check<float, float>(c, std::ldexp(1.0, -24));
          Check<bf16, bf16>(c, std::ldexp(1.0, -8));
          Check<bf16, float>(c, std::ldexp(1.0, -24));
        }
      }
    }
  }
}

TEST(CublasLt, ChoosesAnAlgorithmOnceForEachKindOfProduct) {
  ASSERT_TRUE(Started());
  const Case c = {0, 4, 6, 8, false, false, false, 1};
  alignas(256) float a[64], b[64], out[64] = {};
  for (int i = 0; i < 64; ++i) a[i] = b[i] = static_cast<float>(i);
  const Context context(CpuDevice());
  const auto multiply = [&](float* from, float alpha, bool accumulate) {
    cuda::Matmul(context, {.a = Tensor(from, {c.m, c.k}),
                           .b = Tensor(b, {c.k, c.n}),
                           .c = Tensor(out, {c.m, c.n}),
                           .accumulate = accumulate,
                           .alpha = alpha});
  };
  const int before = Choices();
  multiply(a, 1, false);
  EXPECT_EQ(Choices(), before + 1);
  multiply(a, 2, true);  // another sum of the same kind
  multiply(a, 1, false);
  EXPECT_EQ(Choices(), before + 1);
  multiply(a + 1, 1, false);  // less aligned: what was chosen may not read it
  EXPECT_EQ(Choices(), before + 2);
}

TEST(CublasLt, HasNoProductInDouble) {
  ASSERT_TRUE(Started());
  double x[4] = {1, 2, 3, 4}, y[4] = {};
  const Context context(CpuDevice());
  EXPECT_DEATH(
      cuda::Matmul(context,
                   {.a = Tensor(x, {2, 2}), .b = Tensor(x, {2, 2}), .c = Tensor(y, {2, 2})}),
      "no product for f64");
}

}  // namespace
}  // namespace overtok
