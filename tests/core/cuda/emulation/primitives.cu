#include "core/cuda/kernel.h"
#include "tests/core/cuda/emulation/primitives.h"

namespace overtok::OT_BACKEND {
namespace {

template <class T>
__global__ void ShuffleKernel(const T* in, T* by_xor, T* from, T* up) {
  const int i = static_cast<int>(threadIdx.x);
  const T x = in[i];
  by_xor[i] = ShuffleXor(x, 5);
  from[i] = Shuffle(x, (3 * Lane() + 1) % kWarp);
  up[i] = ShuffleUp(x, 4);
}
template <class T>
void LaunchShuffle(const Context& context, const T* in, T* by_xor, T* from, T* up) {
  Launch("Shuffle", context, {.threads = 64}, ShuffleKernel<T>, in, by_xor, from, up);
}

__global__ void VoteKernel(const float* in, unsigned* ballots, int* bits) {
  const unsigned ballot = VoteBallot(in[threadIdx.x] > 0);
  ballots[threadIdx.x] = ballot;
  bits[threadIdx.x] = CountBits(ballot);
}
void LaunchVote(const Context& context, const float* in, unsigned* ballots, int* bits) {
  Launch("Vote", context, {.threads = 64}, VoteKernel, in, ballots, bits);
}

__global__ void SumKernel(const float* in, float* warp_sum, float* block_sum, float* warp_max,
                          float* block_max) {
  Shared shared;
  float* room = shared.Take<float>(5);
  const int i = static_cast<int>(threadIdx.x);
  warp_sum[i] = WarpSum(in[i]);
  warp_max[i] = WarpMax(in[i]);
  block_sum[i] = BlockSum(in[i], room);
  block_max[i] = BlockMax(in[i], room);
}
void LaunchSums(const Context& context, const float* in, float* warp_sum, float* block_sum,
                float* warp_max, float* block_max) {
  Launch("Sums", context, {.threads = 160, .shared_bytes = SharedBytes<float>(5)}, SumKernel, in,
         warp_sum, block_sum, warp_max, block_max);
}

constexpr int kAtomicThreads = 64, kBins = 16;
__global__ void AtomicKernel(const uint32_t* in, unsigned* histogram, int* sum, uint64_t* wide_sum,
                             unsigned* bits) {
  Shared shared;
  unsigned* bins = shared.Take<unsigned>(kBins);
  const int t = static_cast<int>(threadIdx.x);
  const uint32_t x = in[int64_t{blockIdx.x} * kAtomicThreads + t];
  if (t < kBins) bins[t] = 0;
  SyncThreads();
  AtomicAdd(bins + x % kBins, 1U);
  SyncThreads();
  if (t < kBins) AtomicAdd(histogram + t, bins[t]);
  AtomicAdd(sum, static_cast<int>(x));
  AtomicAdd(wide_sum, uint64_t{x} << 32);
  AtomicOr(bits, 1U << x % 32);
}
void LaunchAtomics(const Context& context, const uint32_t* in, int64_t blocks, unsigned* histogram,
                   int* sum, uint64_t* wide_sum, unsigned* bits) {
  Launch(
      "Atomics", context,
      {.blocks = blocks, .threads = kAtomicThreads, .shared_bytes = SharedBytes<unsigned>(kBins)},
      AtomicKernel, in, histogram, sum, wide_sum, bits);
}

// Rows of 24 elements in shared memory, so that rows of tiles do not follow one another.
__global__ void ProductKernel(const bf16* a, const bf16* b, bool transposed, float* d) {
  constexpr int kSide = 16, kRow = 24;
  Shared shared;
  bf16* sa = shared.Take<bf16>(kSide * kRow);
  bf16* sb = shared.Take<bf16>(kSide * kRow);
  const int lane = Lane();
  for (int i = lane; i < kSide * kSide; i += kWarp) {
    sa[i / kSide * kRow + i % kSide] = a[i];
    sb[i / kSide * kRow + i % kSide] = b[i];
  }
  SyncWarp();
  uint32_t ta[4], tb[4];
  const int row = lane % 8, tile = lane / 8;
  LoadMatrix4(ta, sa + (row + 8 * (tile % 2)) * kRow + 8 * (tile / 2));
  // Tiles 0, 1: the sixteen k of columns 0..7 of the result; 2, 3: of the others.
  if (transposed) {
    LoadMatrix4(tb, sb + (row + 8 * (tile / 2)) * kRow + 8 * (tile % 2));
  } else {
    LoadMatrix4Transposed(tb, sb + (row + 8 * (tile % 2)) * kRow + 8 * (tile / 2));
  }
  for (int half = 0; half < 2; ++half) {
    float sum[4] = {};
    const uint32_t operand[2] = {tb[2 * half], tb[2 * half + 1]};
    MultiplyTile(sum, ta, operand);
    const int r = lane / 4, c = 8 * half + 2 * (lane % 4);
    d[r * kSide + c] = sum[0];
    d[r * kSide + c + 1] = sum[1];
    d[(r + 8) * kSide + c] = sum[2];
    d[(r + 8) * kSide + c + 1] = sum[3];
  }
}
void LaunchProduct(const Context& context, const bf16* a, const bf16* b, bool transposed,
                   float* d) {
  Launch("Product", context, {.threads = 32, .shared_bytes = 2 * SharedBytes<bf16>(16 * 24)},
         ProductKernel, a, b, transposed, d);
}

__global__ void PipelineKernel(const float* rows, int64_t count, int64_t valid_rows, float* sums) {
  constexpr int kRow = 128;
  Shared shared;
  float* buffers = shared.Take<float>(2 * kRow);
  const int lane = Lane();
  const auto start = [&](int64_t row) {
    if (row < count) {
      const bool valid = row < valid_rows;
      CopyAsync16(buffers + row % 2 * kRow + 4 * lane, rows + (valid ? row : 0) * kRow + 4 * lane,
                  valid);
    }
    CopyAsyncCommit();
  };
  start(0);
  for (int64_t row = 0; row < count; ++row) {
    start(row + 1);
    CopyAsyncWait<1>();
    SyncThreads();
    // Of another lane's copy.
    const int other = (lane + 7) % kWarp;
    const Pack<float, 4> four = LoadPack<4>(buffers + row % 2 * kRow + 4 * other);
    const float sum = WarpSum(four.v[0] + four.v[1] + four.v[2] + four.v[3]);
    if (lane == 0) sums[row] = sum;
    SyncThreads();
  }
  CopyAsyncWait<0>();
}
void LaunchPipeline(const Context& context, const float* rows, int64_t count, int64_t valid_rows,
                    float* sums) {
  Launch("Pipeline", context, {.threads = 32, .shared_bytes = SharedBytes<float>(256)},
         PipelineKernel, rows, count, valid_rows, sums);
}

__global__ void WarpExchangeKernel(const int* in, int* out) {
  Shared shared;
  int* room = shared.Take<int>(kWarp);
  const int lane = Lane();
  int x = in[lane];
  for (int k = 0; k < 100; ++k) {
    room[lane] = x;
    SyncWarp();
    x = room[(lane + 1) % kWarp] + 1;
    SyncWarp();
  }
  out[lane] = x;
}
void LaunchWarpExchange(const Context& context, const int* in, int* out) {
  Launch("WarpExchange", context, {.threads = 32, .shared_bytes = SharedBytes<int>(kWarp)},
         WarpExchangeKernel, in, out);
}

__global__ void PackPairKernel(const float* in, uint32_t* out) {
  const int lane = Lane();
  out[lane] = PackPair(in[2 * lane], in[2 * lane + 1]);
}
void LaunchPackPairs(const Context& context, const float* in, uint32_t* out) {
  Launch("PackPairs", context, {.threads = 32}, PackPairKernel, in, out);
}

}  // namespace

const testing::PrimitiveKernels& Primitives() {
  static const testing::PrimitiveKernels kernels = {
      .shuffle_floats = LaunchShuffle<float>,
      .shuffle_doubles = LaunchShuffle<double>,
      .vote = LaunchVote,
      .sums = LaunchSums,
      .atomics = LaunchAtomics,
      .product = LaunchProduct,
      .pipeline = LaunchPipeline,
      .warp_exchange = LaunchWarpExchange,
      .pack_pairs = LaunchPackPairs,
  };
  return kernels;
}

}  // namespace overtok::OT_BACKEND
