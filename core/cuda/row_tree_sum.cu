// Sums of rows in the order that core/ops/row_tree_sum.h promises, bit for bit: a warp takes a row
// of the result and walks over its contributions, a pack of columns in each lane, the tree's
// partial sums in registers. Every contribution is read once.
// Bytes for N contributions to U rows of w columns: 4 w (N + U), and 8 N + 4 U of the lists (from
// the caches after a row's first columns); (N - U) w additions.
#include "core/cuda/kernels.h"
#include "core/cuda/packs.h"
#include "core/cuda/tree.h"

namespace overtok::OT_BACKEND {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

template <int kLevels>
struct Begins {
  uint32_t at[kListed<kLevels> + 1];  // part_begin
  int parts;
};

// The part that place `at` of the contributions belongs to: the last that begins at or before it.
template <int kLevels>
__device__ __forceinline__ int PartOf(const Begins<kLevels>& begins, uint32_t at) {
  int low = 0, high = begins.parts;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (begins.at[middle] <= at) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

template <int N, int kLevels>
__global__ void __launch_bounds__(kThreads, 1)
    RowTreeSumKernel(const float* contributions, const uint64_t* order, const uint32_t* starts,
                     const Begins<kLevels> begins, int leaves, float* out, int64_t rows,
                     int64_t width) {
  const int64_t row = int64_t{blockIdx.x} * kWarps + WarpIndex();
  if (row >= rows) return;
  const int64_t begin = starts[row], end = starts[row + 1];
  for (int64_t column = int64_t{Lane()} * N; column < width; column += int64_t{kWarp} * N) {
    TreeSum<N, kLevels> tree;
    float total[N] = {};
    int current = -1;  // the tree that the leaves belong to
    bool first = true;
    const auto close = [&] {
      float sum[N];
      tree.Take(sum);
      for (int i = 0; i < N; ++i) total[i] = first ? sum[i] : total[i] + sum[i];
      first = false;
    };
    for (int64_t i = begin; i < end; ++i) {
      const auto at = static_cast<uint32_t>(order[i]);
      const int part = PartOf(begins, at);
      if (part / leaves != current) {
        if (current >= 0) close();
        current = part / leaves;
      }
      float x[N];
      LoadFloats<N>(contributions + int64_t{at} * width + column, x);
      tree.Add(static_cast<uint32_t>(part % leaves), x);
    }
    close();
    // Zeros that were left out make -0 + 0 = 0 of a sum whose terms are all -0.
    if (end - begin != begins.parts) {
      for (int i = 0; i < N; ++i) total[i] += 0.0F;
    }
    StoreFloats<N>(out + row * width + column, total);
  }
}

template <int kLevels>
void Run(const Context& context, const RowTreeSumArgs& args) {
  constexpr int kPack = 4;
  const int64_t rows = args.out.dim(0), width = args.out.dim(1);
  Begins<kLevels> begins = {};
  begins.parts = static_cast<int>(args.part_begin.size()) - 1;
  for (size_t p = 0; p < args.part_begin.size(); ++p)
    begins.at[p] = static_cast<uint32_t>(args.part_begin[p]);
  const float* contributions = args.contributions.data<float>();
  float* out = args.out.data<float>();
  const auto launch = [&](auto pack) {
    Launch("RowTreeSum", context, {.blocks = CeilDiv(rows, kWarps), .threads = kThreads},
           RowTreeSumKernel<decltype(pack)::value, kLevels>, contributions,
           args.order.data<uint64_t>(), args.starts.data<uint32_t>(), begins,
           static_cast<int>(args.leaves), out, rows, width);
  };
  if (FitsPacks<kPack>(contributions, width) && FitsPacks<kPack>(out, width)) {
    launch(std::integral_constant<int, kPack>());
  } else {
    launch(std::integral_constant<int, 1>());
  }
}

}  // namespace

void RowTreeSum(const Context& context, const RowTreeSumArgs& args) {
  // Places of contributions are the lower halves of `order`.
  OT_CHECK_LE(args.contributions.dim(0), (int64_t{1} << 32) - 1);
  ByCount(static_cast<int64_t>(args.part_begin.size()) - 1, "a sum of ranks' rows",
          [&](auto levels) { Run<decltype(levels)::value>(context, args); });
}

}  // namespace overtok::OT_BACKEND
