// Attention, forward, in bf16 on tensor cores: a block takes 128 queries of one head, in registers,
// and walks over the keys they need in tiles of 64 (heads wider than 64, whose outputs take 128
// registers of each lane: queries in shared memory, tiles of 32 keys), softmax carried along (Dao
// 2023, FlashAttention-2, algorithm 1). Scores and sums are f32 in registers, probabilities enter
// the second product as bf16, the output is rounded once. No score ever reaches memory.
//
// Keys run from the first document of the tile's first query to the last query: tiles above the
// diagonal and in earlier documents are not visited, and each warp skips those that its own 32
// queries do not need.
//
// FLOPs: 4 B H D S^2 / 2 with one document a window. What bounds it on an H200, for one tile of 128
// queries by 64 keys of width 64 (2.1 MFLOP in 4,096 FLOP a clock, 512 clocks of a multiprocessor,
// of which mma.sync reaches two thirds):
//   - keys and values come from L2, 16 KB a tile: 128 FLOP/byte, 2.3 TB/s at 300 TFLOP/s, below
//     what L2 gives; from HBM they come about once, since the blocks of one head run side by side;
//   - shared memory: a warp reads keys and values once for its 32 queries, 4 x 16 KB a tile, 512
//     clocks at 128 bytes a clock. With 16 queries a warp it would be twice that, above the
//     products: hence two tiles of 16 rows in each of four warps, rather than eight warps;
//   - 8,192 exponentials, 16 a clock: 512 clocks in a unit of their own, while about five f32
//     operations for each score (scale, maximum, sum, half a conversion) are 320 clocks. They
//     overlap with products of the other block of the multiprocessor, of which registers allow two.
// Memory: 2 B S D (2 H + 2 K) bytes, and 4 B H S of lse.
#include "core/cuda/attention.h"

namespace overtok::OT_BACKEND {
namespace attention {
namespace {

constexpr int kRowTiles = 2;  // of 16 queries in a warp
constexpr int kWarpRows = 16 * kRowTiles;

// Softmax of one step, in place, for the queries of a warp: `most` and `sum` go on along the keys
// (sums are those of the lane's own keys until the end), `o` is brought to the new maximum.
template <int kColumns, int kWidth>
__device__ __forceinline__ void SoftmaxStep(float scale2, float (&s)[kRowTiles][kColumns][4],
                                            float (&most)[kRowTiles][2], float (&sum)[kRowTiles][2],
                                            float (&o)[kRowTiles][kWidth / 8][4]) {
  OT_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    OT_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float before = most[m][half];
      float largest = before;
      OT_UNROLL
      for (int n = 0; n < kColumns; ++n) {
        largest = fmaxf(largest, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
      }
      largest = fmaxf(largest, ShuffleXor(largest, 1));
      largest = fmaxf(largest, ShuffleXor(largest, 2));
      most[m][half] = largest;
      // A query that has seen no key yet: 0 instead of -inf, lest -inf - -inf be NaN.
      const float zero_point = largest == -INFINITY ? 0.0F : largest * scale2;
      const float factor = Exp2(before * scale2 - zero_point);
      float even = 0, odd = 0;
      OT_UNROLL
      for (int n = 0; n < kColumns; ++n) {
        float(&pair)[4] = s[m][n];
        pair[2 * half] = Exp2(pair[2 * half] * scale2 - zero_point);
        pair[2 * half + 1] = Exp2(pair[2 * half + 1] * scale2 - zero_point);
        even += pair[2 * half];
        odd += pair[2 * half + 1];
      }
      sum[m][half] = sum[m][half] * factor + (even + odd);
      OT_UNROLL
      for (int n = 0; n < kWidth / 8; ++n) {
        o[m][n][2 * half] *= factor;
        o[m][n][2 * half + 1] *= factor;
      }
    }
  }
}

// -inf for keys from j0 on that a query of the warp (from i0 on) does not attend to.
template <int kColumns>
__device__ __forceinline__ void Mask(int i0, int j0, const int* starts,
                                     float (&s)[kRowTiles][kColumns][4]) {
  OT_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    OT_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = 16 * m + 8 * half + Lane() / 4;
      const int first = starts[row] - j0, last = i0 + row - j0;
      OT_UNROLL
      for (int n = 0; n < kColumns; ++n) {
        OT_UNROLL
        for (int e = 0; e < 2; ++e) {
          const int key = 8 * n + Lane() % 4 * 2 + e;
          if (key < first || key > last) s[m][n][2 * half + e] = -INFINITY;
        }
      }
    }
  }
}

template <int kWidth, bool kPacked>
__global__ void __launch_bounds__(kThreads, 2)
    ForwardKernel(const bf16* q, const bf16* k, const bf16* v, const int32_t* segments, bf16* o,
                  float* lse, Sizes sizes) {
  constexpr int kQueries = Tiles<kWidth>::kForwardQueries, kKeys = Tiles<kWidth>::kForwardKeys;
  constexpr int kTile = kKeys * kWidth;
  static_assert(kQueries == kWarps * kWarpRows);
  Shared shared;
  bf16* const q_tile = shared.Take<bf16>(kQueries * kWidth);
  bf16* const stages = shared.Take<bf16>(2 * 2 * kTile);  // two of keys and values
  int* const starts = shared.Take<int>(kQueries);

  const int64_t b = blockIdx.z, h = blockIdx.y;
  if (sizes.LeavesOut(b)) return;
  const int length = static_cast<int>(sizes.length), width = static_cast<int>(sizes.width);
  // The most expensive queries, those at the end, first.
  const int i0 = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kQueries;
  const int rows = length - i0 < kQueries ? length - i0 : kQueries;
  const int64_t q_stride = sizes.heads * width, k_stride = sizes.kv_heads * width;
  const int64_t q_offset = ((b * length + i0) * sizes.heads + h) * width;
  const int64_t k_offset = (b * length * sizes.kv_heads + h / sizes.group()) * width;
  segments += b * length;
  CopyTile<kWidth, kQueries, kPacked>(q + q_offset, q_stride, rows, width, q_tile);
  CopyAsyncCommit();
  FindStarts<kQueries>(segments, i0, length, starts);
  SyncThreads();

  const int first = starts[0], end = i0 + rows;
  const auto copy_keys = [&](int j0, bf16* stage) {
    const int keys = end - j0 < kKeys ? end - j0 : kKeys;
    const int64_t offset = k_offset + j0 * k_stride;
    CopyTile<kWidth, kKeys, kPacked>(k + offset, k_stride, keys, width, stage);
    CopyTile<kWidth, kKeys, kPacked>(v + offset, k_stride, keys, width, stage + kTile);
    CopyAsyncCommit();
  };
  copy_keys(first, stages);
  CopyAsyncWait<1>();
  SyncThreads();
  const int warp_row = WarpIndex() * kWarpRows;
  const int warp_first = starts[warp_row], warp_i0 = i0 + warp_row;
  const int last_start = starts[warp_row + kWarpRows - 1];
  // Wider heads leave no registers for the queries.
  const LeftRows<kWidth, kRowTiles, kWidth <= 64> queries(q_tile, warp_row);
  const float scale2 = sizes.scale * kLog2E;
  float out[kRowTiles][kWidth / 8][4] = {};
  float most[kRowTiles][2], sum[kRowTiles][2] = {};
  for (int m = 0; m < kRowTiles; ++m) most[m][0] = most[m][1] = -INFINITY;

  int current = 0;
  for (int j0 = first; j0 < end; j0 += kKeys) {
    bf16* const stage = stages + current * 2 * kTile;
    current ^= 1;
    // Of this step's tile all copies are there, and all warps are done with the step before.
    CopyAsyncWait<0>();
    SyncThreads();
    if (j0 + kKeys < end) copy_keys(j0 + kKeys, stages + current * 2 * kTile);
    if (j0 >= warp_i0 + kWarpRows || j0 + kKeys <= warp_first) continue;
    float s[kRowTiles][kKeys / 8][4] = {};
    MultiplyByRows<kWidth>(queries, stage, 0, s);
    if (j0 + kKeys > warp_i0 + 1 || j0 < last_start) Mask(warp_i0, j0, starts + warp_row, s);
    SoftmaxStep<kKeys / 8, kWidth>(scale2, s, most, sum, out);
    MultiplyTileRows<kWidth>(s, stage + kTile, 0, out);
  }

  float factors[kRowTiles][2];
  float* const lse_rows = lse + (b * sizes.heads + h) * length;
  for (int m = 0; m < kRowTiles; ++m) {
    for (int half = 0; half < 2; ++half) {
      float total = sum[m][half];
      total += ShuffleXor(total, 1);
      total += ShuffleXor(total, 2);
      factors[m][half] = 1.0F / total;
      const int i = warp_i0 + 16 * m + 8 * half + Lane() / 4;
      if (i < length && Lane() % 4 == 0) lse_rows[i] = most[m][half] * sizes.scale + logf(total);
    }
  }
  // Through the warp's own rows of the queries' tile, to be written in whole lines.
  SyncWarp();
  RoundToTile<kWidth>(out, factors, warp_row, q_tile);
  SyncWarp();
  StoreRows<kWidth, kWarpRows, kPacked>(q_tile, warp_row, q_stride, length - warp_i0, width,
                                        o + q_offset + warp_row * q_stride);
}

}  // namespace
}  // namespace attention

void AttentionForward(const Context& context, const AttentionForwardArgs& args) {
  AttentionForwardExcept(context, args, nullptr);
}

void AttentionForwardExcept(const Context& context, const AttentionForwardArgs& args,
                            const int32_t* taken) {
  using namespace attention;  // NOLINT(google-build-using-namespace)
  if (args.q.dtype() == DType::kF32 && taken == nullptr) return AttentionForwardF32(context, args);
  OT_CHECK(args.q.dtype() == DType::kBF16)
      << "the CUDA backend has no attention for " << NameOf(args.q.dtype());
  Sizes sizes = SizesOf(args.q, args.k, args.segments, args.scale);
  sizes.taken = taken;
  ByWidth(sizes.width, AllPacked(sizes.width, args.q, args.k, args.v, args.o),
          [&](auto padded, auto packed) {
            constexpr int kWidth = padded();
            using Sizing = Tiles<kWidth>;
            constexpr int64_t kRows = Sizing::kForwardQueries + 4 * Sizing::kForwardKeys;
            const LaunchShape shape = {
                .blocks = CeilDiv(sizes.length, Sizing::kForwardQueries),
                .threads = kThreads,
                .shared_bytes =
                    SharedBytes<bf16>(kRows * kWidth) + SharedBytes<int>(Sizing::kForwardQueries),
                .blocks_y = sizes.heads,
                .blocks_z = sizes.batch,
            };
            Launch("AttentionForward", context, shape, ForwardKernel<kWidth, packed()>,
                   args.q.data<bf16>(), args.k.data<bf16>(), args.v.data<bf16>(),
                   args.segments.data<int32_t>(), args.o.data<bf16>(), args.lse.data<float>(),
                   sizes);
          });
}

}  // namespace overtok::OT_BACKEND
