// Each row's contributions once, a few columns at a time: partial sums of the tree wait on a stack,
// one for each level that is open. Which of them are joined follows from the numbers of the leaves
// alone: two neighbours meet at the highest bit in which their numbers differ, and a tree over any
// number of leaves is the one over the next power of two without those that are missing.
#include "core/ops/row_tree_sum.h"

#include <algorithm>
#include <array>
#include <bit>

#include "core/cpu/kernels.h"
#include "core/cpu/parallel.h"

namespace overtok::cpu {
namespace {

constexpr int64_t kColumns = 64;

void AddTo(float* __restrict sum, const float* __restrict x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] += x[i];
}

class RowSum {
 public:
  explicit RowSum(const RowTreeSumArgs& args)
      : args_(args),
        width_(args.out.dim(1)),
        rows_(args.contributions.data<float>()),
        order_(args.order.data<uint64_t>()),
        starts_(args.starts.data<uint32_t>()) {}

  void Run(int64_t row) {
    float* out = args_.out.data<float>() + row * width_;
    for (int64_t column = 0; column < width_; column += kColumns) {
      column_ = column;
      count_ = std::min(kColumns, width_ - column);
      SumTrees(starts_[row], starts_[row + 1], out + column);
    }
  }

 private:
  // The part that place `at` of the contributions belongs to.
  int64_t PartOf(int64_t at) const {
    const auto& begin = args_.part_begin;
    return std::upper_bound(begin.begin(), begin.end(), at) - begin.begin() - 1;
  }

  void SumTrees(int64_t begin, int64_t end, float* out) {
    const auto parts = static_cast<int64_t>(args_.part_begin.size()) - 1;
    int64_t tree = -1, leaf = -1;
    bool first = true;
    for (int64_t i = begin; i < end; ++i) {
      const auto at = static_cast<int64_t>(order_[i] & 0xffffffffU);
      const int64_t part = PartOf(at);
      if (part / args_.leaves != tree) {
        Close(&first, out);
        tree = part / args_.leaves;
        leaf = -1;
      }
      Push(rows_ + at * width_ + column_, leaf, part % args_.leaves);
      leaf = part % args_.leaves;
    }
    Close(&first, out);
    // Zeros that were left out make -0 + 0 = 0 of a sum whose terms are all -0.
    if (end - begin == parts) return;
    for (int64_t c = 0; c < count_; ++c) out[c] += 0.0F;
  }

  // The next leaf of a tree after `previous` (-1: the first). Sums that are complete before the two
  // meet are joined first.
  void Push(const float* x, int64_t previous, int64_t leaf) {
    const int meeting = previous < 0 ? 64 : std::bit_width(static_cast<uint64_t>(previous ^ leaf));
    while (depth_ >= 2 && meets_[depth_ - 1] < meeting) Join();
    std::copy_n(x, count_, sums_[depth_].data());
    meets_[depth_++] = meeting;
  }

  void Join() {
    --depth_;
    AddTo(sums_[depth_ - 1].data(), sums_[depth_].data(), count_);
  }

  // Ends a tree: its sum goes to `out`.
  void Close(bool* first, float* out) {
    if (depth_ == 0) return;
    while (depth_ >= 2) Join();
    depth_ = 0;
    if (*first) {
      std::copy_n(sums_[0].data(), count_, out);
    } else {
      AddTo(out, sums_[0].data(), count_);
    }
    *first = false;
  }

  const RowTreeSumArgs& args_;
  int64_t width_;
  const float* rows_;
  const uint64_t* order_;
  const uint32_t* starts_;
  int64_t column_ = 0, count_ = 0;
  // Open sums, each of a lower level than the one before; where each meets the one before it.
  static constexpr size_t kLevels = 64;
  size_t depth_ = 0;
  std::array<int, kLevels> meets_;
  std::array<std::array<float, kColumns>, kLevels> sums_;
};

}  // namespace

void RowTreeSum(const Context& /*context*/, const RowTreeSumArgs& args) {
  const int64_t grain = std::max<int64_t>(1, 2048 / args.out.dim(1));
  ParallelFor(args.out.dim(0), grain, [&](int64_t begin, int64_t end) {
    RowSum sum(args);
    for (int64_t row = begin; row < end; ++row) sum.Run(row);
  });
}

}  // namespace overtok::cpu
