// Exact sums (core/exact_digits.h). AddExact: blocks each add a stretch of one sum's values to
// words in shared memory, and these to the result's. A warp adds those of its values that begin in
// one word, nearly all as a rule, in registers first, and then once for all 32 lanes: atomics of
// many threads on one word would wait for each other. Integers give the same bits in any order.
// Bytes: 8 n of values, read S times from L2 where S sums share their cache lines (up to 4), and
// 560 a sum and block; about 12 integer operations a value.
// RoundExact: 560 bytes a sum and rank; carries and rounding are one thread's, some microseconds.
// HaltUnlessFinite: 8 n bytes, n additions in order by one thread; n is some dozens.
#include "core/cuda/kernels.h"
#include "core/exact_digits.h"

namespace overtok::OT_BACKEND {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 4;                                // values of a thread at a time
constexpr int64_t kBlockValues = kThreads * kEach * 8;  // of a sum

__device__ __forceinline__ void AddWord(int64_t* to, int64_t x) {
  if (x != 0) AtomicAdd(reinterpret_cast<uint64_t*>(to), static_cast<uint64_t>(x));
}

// Adds the warp's values, kEach a lane, to shared words. All lanes call.
__device__ __forceinline__ void AddOfWarp(const double (&values)[kEach], int64_t* words) {
  unsigned open = 0;  // bit k: values[k] is still to be added
  OT_UNROLL
  for (int k = 0; k < kEach; ++k) {
    if (values[k] != 0) open |= 1U << k;
  }
  for (;;) {
    const unsigned waiting = VoteBallot(open != 0);
    if (waiting == 0) return;
    // Those of the first lane's first value's word are next.
    int word = 0;
    OT_UNROLL
    for (int k = kEach - 1; k >= 0; --k) {
      if ((open >> k & 1) != 0) word = exact::WordOf(values[k]);
    }
    word = Shuffle(word, CountBits((waiting & (0U - waiting)) - 1));
    int64_t sums[3] = {0, 0, 0};
    OT_UNROLL
    for (int k = 0; k < kEach; ++k) {
      if ((open >> k & 1) == 0 || exact::WordOf(values[k]) != word) continue;
      open &= ~(1U << k);
      const exact::Pieces pieces = exact::PiecesOf(values[k]);
      for (int p = 0; p < 3; ++p) sums[p] += pieces.piece[p];
    }
    // Lanes 0, 1 and 2 each have one piece to add.
    for (int p = 0; p < 3; ++p) {
      const int64_t sum = WarpSum(sums[p]);
      if (Lane() == p) AddWord(words + word + p, sum);
    }
  }
}

// Grid: x over stretches of a sum's values, y over sums. One stretch: all of it, into `words`;
// several: added to the global words, which are there and are carried afterwards.
__global__ void __launch_bounds__(kThreads)
    AddExactKernel(const double* values, int64_t each, int64_t* words, bool accumulate) {
  Shared shared;
  auto* own = shared.Take<int64_t>(exact::kWords);
  const int64_t sums = gridDim.y, sum = blockIdx.y;
  int64_t* out = words + sum * exact::kWords;
  const int thread = static_cast<int>(threadIdx.x);
  const bool alone = gridDim.x == 1;
  if (thread < exact::kWords) own[thread] = alone && accumulate ? out[thread] : 0;
  SyncThreads();
  const int64_t begin = int64_t{blockIdx.x} * kBlockValues;
  const int64_t end = begin + kBlockValues < each ? begin + kBlockValues : each;
  for (int64_t at = begin; at < end; at += kThreads * kEach) {
    double mine[kEach];
    OT_UNROLL
    for (int k = 0; k < kEach; ++k) {
      const int64_t i = at + k * kThreads + thread;
      mine[k] = i < end ? values[i * sums + sum] : 0.0;
    }
    AddOfWarp(mine, own);
  }
  SyncThreads();
  if (!alone) {
    if (thread < exact::kWords) AddWord(out + thread, own[thread]);
    return;
  }
  if (thread == 0) exact::Carry(own);
  SyncThreads();
  if (thread < exact::kWords) out[thread] = own[thread];
}

constexpr int kWordThreads = 96;  // one for each word
static_assert(kWordThreads >= exact::kWords);

__global__ void __launch_bounds__(kWordThreads) ClearWordsKernel(int64_t* words) {
  if (threadIdx.x < exact::kWords) words[int64_t{blockIdx.x} * exact::kWords + threadIdx.x] = 0;
}

__global__ void __launch_bounds__(kWordThreads) CarryWordsKernel(int64_t* words) {
  Shared shared;
  auto* own = shared.Take<int64_t>(exact::kWords);
  int64_t* word = words + int64_t{blockIdx.x} * exact::kWords + threadIdx.x;
  if (threadIdx.x < exact::kWords) own[threadIdx.x] = *word;
  SyncThreads();
  if (threadIdx.x == 0) exact::Carry(own);
  SyncThreads();
  if (threadIdx.x < exact::kWords) *word = own[threadIdx.x];
}

// A block a sum.
__global__ void __launch_bounds__(kWordThreads)
    RoundExactKernel(const int64_t* words, int64_t ranks, double* out) {
  Shared shared;
  auto* total = shared.Take<int64_t>(exact::kWords);
  if (threadIdx.x < exact::kWords) {
    const int64_t stride = int64_t{gridDim.x} * exact::kWords;
    const int64_t* word = words + int64_t{blockIdx.x} * exact::kWords + threadIdx.x;
    int64_t sum = 0;
    for (int64_t r = 0; r < ranks; ++r) sum += word[r * stride];
    total[threadIdx.x] = sum;
  }
  SyncThreads();
  if (threadIdx.x == 0) out[blockIdx.x] = exact::Round(total);
}

// A number that is not finite leaves a sum that is not.
__global__ void HaltUnlessFiniteKernel(const double* x, int64_t n, uint32_t* halted) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i];
  if (exact::WordOf(sum) >= exact::kDigits) halted[0] = 1;
}

}  // namespace

void AddExact(const Context& context, const AddExactArgs& args) {
  const int64_t sums = args.words.dim(0), each = args.values.elements() / sums;
  const auto* values = each > 0 ? args.values.data<double>() : nullptr;
  auto* words = args.words.data<int64_t>();
  const LaunchShape by_sum = {
      .blocks = sums, .threads = kWordThreads, .shared_bytes = SharedBytes<int64_t>(exact::kWords)};
  const int64_t blocks = each > kBlockValues ? CeilDiv(each, kBlockValues) : 1;
  if (blocks > 1 && !args.accumulate)
    Launch("ClearExact", context, by_sum, ClearWordsKernel, words);
  OT_CHECK_LT(sums, 65536) << "exact sums at once";
  Launch("AddExact", context,
         {.blocks = blocks,
          .threads = kThreads,
          .shared_bytes = SharedBytes<int64_t>(exact::kWords),
          .blocks_y = sums},
         AddExactKernel, values, each, words, args.accumulate);
  if (blocks > 1) Launch("CarryExact", context, by_sum, CarryWordsKernel, words);
}

void RoundExact(const Context& context, const RoundExactArgs& args) {
  Launch("RoundExact", context,
         {.blocks = args.out.elements(),
          .threads = kWordThreads,
          .shared_bytes = SharedBytes<int64_t>(exact::kWords)},
         RoundExactKernel, args.words.data<int64_t>(), args.words.dim(0), args.out.data<double>());
}

void HaltUnlessFinite(const Context& context, const HaltUnlessFiniteArgs& args) {
  Launch("HaltUnlessFinite", context, {}, HaltUnlessFiniteKernel, args.x.data<double>(),
         args.x.elements(), args.halted.data<uint32_t>());
}

}  // namespace overtok::OT_BACKEND
