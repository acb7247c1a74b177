// Faults that other projects' users reported and that concern ops as a whole; those of one op stand
// in that op's test.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "core/ops/elementwise.h"
#include "core/ops/embedding.h"
#include "core/ops/kernels.h"
#include "tests/core/ops/op_harness.h"

namespace overtok {
namespace {

// 14,135 rows of 151,936 columns pass 2^31 elements.
constexpr int64_t kRows = 14135, kColumns = 151936;

TEST(SixtyFourBitOffsets, RowsOfATensorBeyondTwoToThe31) {
  EXPECT_EQ(Shape({kRows, kColumns}).elements(), 2147615360);
  char* base = nullptr;
  base += 64;  // never dereferenced
  const Tensor logits(base, DType::kF32, {kRows, kColumns});
  const char* last = static_cast<const char*>(logits.Rows(kRows - 1, 1).raw());
  EXPECT_EQ(last - base, (kRows - 1) * kColumns * 4);
  EXPECT_EQ(logits.bytes(), 8590461440);
}

// A table that exists in address space only: one page range of it is touched.
TEST(SixtyFourBitOffsets, EmbeddingRowsBeyondTwoToThe31Elements) {
  const size_t bytes = static_cast<size_t>(kRows * kColumns) * sizeof(float);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "no 8.6 GB of address space here";
  const Tensor table(static_cast<float*>(memory), {kRows, kColumns});
  testing::Buffer ids(DType::kU32, {1}, {static_cast<double>(kRows - 1)});
  testing::Buffer row(DType::kF32, {1, kColumns}), back(DType::kF32, {1, kColumns});
  testing::FillNormal(row, 1, 1);
  const testing::ScratchContext context(EmbeddingBackwardScratch(1));
  EmbeddingBackward(*context, {ids.tensor(), row.tensor(), table});
  EmbeddingForward(*context, {ids.tensor(), table, back.tensor()});
  EXPECT_TRUE(back.SameBits(row));
  munmap(memory, bytes);
}

// Every entry of the backend's table is filled: a missing one would abort in the middle of a run.
TEST(CpuBackend, HasEveryKernel) {
  const Context context = CpuContext();
  using Pointer = Kernel<FillArgs>;
  static_assert(sizeof(Kernels) % sizeof(Pointer) == 0);
  for (size_t at = 0; at < sizeof(Kernels); at += sizeof(Pointer)) {
    Pointer pointer = nullptr;
    std::memcpy(&pointer, reinterpret_cast<const char*>(&context.kernels()) + at, sizeof(pointer));
    EXPECT_TRUE(pointer != nullptr) << "entry " << at / sizeof(Pointer);
  }
}

// cases.md 47: the build keeps NaN and infinity apart from numbers.
#ifdef __FINITE_MATH_ONLY__
static_assert(!__FINITE_MATH_ONLY__, "built with -ffast-math: guards against NaN would vanish");
#endif

TEST(FiniteMath, NanAndInfinityAreSeenUnderTheReleaseFlags) {
  volatile float zero = 0;
  EXPECT_FALSE(std::isfinite(0.0f / zero));
  EXPECT_TRUE(std::isnan(0.0f / zero));
  EXPECT_FALSE(std::isfinite(1.0f / zero));
}

// Subnormals count: Adam's eps of 1e-20 and squares of small gradients need them.
TEST(FiniteMath, SubnormalsAreNotFlushed) {
  volatile float smallest = std::numeric_limits<float>::denorm_min();
  EXPECT_TRUE(smallest * 2.0f > 0.0f);
  testing::Buffer x(DType::kF32, {33}), y(DType::kF32, {33});
  for (int64_t i = 0; i < 33; ++i) x.Set(i, 1e-44);
  const testing::ScratchContext context(0);
  Add(*context, {x.tensor(), y.tensor()});
  EXPECT_TRUE(y.SameBits(x));
}

}  // namespace
}  // namespace overtok
