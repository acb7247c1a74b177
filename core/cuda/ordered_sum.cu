// Sums of tensors in the order that core/ops/ordered_sum.h promises, bit for bit: a thread adds the
// parts of one pack of elements, the tree's partial sums in registers. Every part is read once.
// Bytes for P parts of n values of s bytes: (P + 1) s n; (P - 1) n additions.
#include "core/cuda/kernels.h"
#include "core/cuda/packs.h"
#include "core/cuda/tree.h"

namespace overtok::OT_BACKEND {
namespace {

constexpr int kThreads = 256;

template <class S, int kLevels>
struct Parts {
  const S* at[kListed<kLevels>];
  int count;
};

template <int N, class S, int kLevels, bool kTree>
__global__ void __launch_bounds__(kThreads)
    OrderedSumKernel(const Parts<S, kLevels> parts, S* out, int64_t n) {
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  if (at >= n) return;
  float sum[N];
  if constexpr (kTree) {
    TreeSum<N, kLevels> tree;
    for (int p = 0; p < parts.count; ++p) {
      float x[N];
      Unpack<S, N>(Hold<N>(parts.at[p] + at), x);
      tree.Add(static_cast<uint32_t>(p), x);
    }
    tree.Take(sum);
  } else {
    Unpack<S, N>(Hold<N>(parts.at[0] + at), sum);
    for (int p = 1; p < parts.count; ++p) {
      float x[N];
      Unpack<S, N>(Hold<N>(parts.at[p] + at), x);
      for (int i = 0; i < N; ++i) sum[i] += x[i];
    }
  }
  StoreRounded<N>(out + at, sum);
}

template <class S, int kLevels>
void Run(const Context& context, const OrderedSumArgs& args) {
  // At most 48 registers of waiting sums.
  constexpr int kPack = 4;
  const int64_t n = args.out.elements();
  S* out = args.out.data<S>();
  Parts<S, kLevels> parts = {};
  parts.count = static_cast<int>(args.parts.size());
  bool aligned = FitsPacks<kPack>(out, n);
  for (int p = 0; p < parts.count; ++p) {
    parts.at[p] = args.parts[static_cast<size_t>(p)].data<S>();
    aligned = aligned && FitsPacks<kPack>(parts.at[p], n);
  }
  const auto launch = [&](auto pack, auto tree) {
    constexpr int N = decltype(pack)::value;
    Launch("OrderedSum", context,
           {.blocks = CeilDiv(n, int64_t{kThreads} * N), .threads = kThreads},
           OrderedSumKernel<N, S, kLevels, decltype(tree)::value>, parts, out, n);
  };
  const auto by_order = [&](auto pack) {
    if (args.order == OrderedSumArgs::Order::kTree) {
      launch(pack, std::true_type());
    } else {
      launch(pack, std::false_type());
    }
  };
  if (aligned) {
    by_order(std::integral_constant<int, kPack>());
  } else {
    by_order(std::integral_constant<int, 1>());
  }
}

}  // namespace

void OrderedSum(const Context& context, const OrderedSumArgs& args) {
  ByActivation(args.out.dtype(), "ordered sum", [&](auto zero) {
    ByCount(static_cast<int64_t>(args.parts.size()), "an ordered sum",
            [&](auto levels) { Run<decltype(zero), decltype(levels)::value>(context, args); });
  });
}

}  // namespace overtok::OT_BACKEND
