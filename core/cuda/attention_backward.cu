// Attention, backward, in bf16 on tensor cores (Dao 2023, FlashAttention-2, algorithm 2), without
// atomics: three kernels whose sums run in one order each.
//   - delta[i] = sum over the width of o * dout, f32, one pass over both;
//   - a block for 64 keys of a key/value head makes their dk and dv: it walks over the query heads
//     of the group and, in each, over the queries that attend to its keys, 64 at a time;
//   - a block for 64 queries of a head makes their dq: it walks over their keys, 64 at a time.
// Probabilities are recomputed from lse in f32 and enter products as bf16, as their gradients do;
// sums are f32 in registers, gradients are rounded once. No [S, S] matrix reaches memory.
//
// FLOPs: 7 products of B H D S^2 (causal: half of 2 B H D S^2) against the 5 that dq by atomics
// would take, which is the price of sums in a fixed order. Scores of keys are made transposed, one
// key a row: what a lane then holds of probabilities is what it needs as the left operand of the
// products that make dk and dv, so that they never leave registers.
// Bytes from L2, width 64: 16 KB for each 64 by 64 tile of 2.1 (dk, dv) and 1.6 MFLOP (dq), 128 and
// 96 FLOP/byte; from HBM about once. Shared memory is read once for 16 rows of a warp: 16 FLOP/byte
// at 128 bytes a clock, half of the tensor cores' 4,096 FLOP a clock, a little below what mma.sync
// reaches of them. Two tiles of 16 rows a warp would need more registers than there are for dk and
// dv of two operands each.
#include "core/cuda/attention.h"

namespace overtok::OT_BACKEND {
namespace attention {
namespace {

constexpr int kWarpRows = 16;

// delta[b, h, i] of rows [B*S, H, D]: kLanes lanes for a row, eight elements each.
template <class T, int kLanes, bool kPacked>
__global__ void DeltaKernel(const T* o, const T* dout, float* delta, Sizes sizes) {
  constexpr int kRowsOfBlock = kThreads / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int64_t row = int64_t{blockIdx.x} * kRowsOfBlock + threadIdx.x / kLanes;
  const bool valid = row < sizes.batch * sizes.length * sizes.heads &&
                     !sizes.LeavesOut(row / (sizes.length * sizes.heads));
  const int64_t at = row * sizes.width + lane * 8;
  float sum = 0;
  if constexpr (kPacked) {
    if (valid && lane * 8 < sizes.width) {
      const Pack<T, 8> x = LoadPack<8>(o + at), y = LoadPack<8>(dout + at);
      for (int e = 0; e < 8; ++e) sum += ToFloat(x.v[e]) * ToFloat(y.v[e]);
    }
  } else {
    for (int e = 0; e < 8; ++e) {
      if (valid && lane * 8 + e < sizes.width) sum += ToFloat(o[at + e]) * ToFloat(dout[at + e]);
    }
  }
  for (int distance = kLanes / 2; distance > 0; distance /= 2) sum += ShuffleXor(sum, distance);
  if (!valid || lane != 0) return;
  const int64_t token = row / sizes.heads, h = row % sizes.heads;
  const int64_t b = token / sizes.length, i = token % sizes.length;
  delta[(b * sizes.heads + h) * sizes.length + i] = sum;
}

// dk and dv. Scores are [keys, queries]: a lane holds keys Lane() / 4 and + 8 of the warp's 16 and
// two queries of every eight.
template <int kWidth, bool kPacked>
__global__ void __launch_bounds__(kThreads, 2)
    KeyGradientKernel(const bf16* dout, const bf16* q, const bf16* k, const bf16* v,
                      const int32_t* segments, const float* lse, const float* delta, bf16* dk,
                      bf16* dv, Sizes sizes) {
  constexpr int kKeys = Tiles<kWidth>::kGradientKeys;
  constexpr int kQueries = Tiles<kWidth>::kGradientKeysQueries;
  constexpr int kTile = kQueries * kWidth;
  static_assert(kKeys == kWarps * kWarpRows && 2 * kQueries <= kThreads);
  Shared shared;
  bf16* const k_tile = shared.Take<bf16>(kKeys * kWidth);
  bf16* const v_tile = shared.Take<bf16>(kKeys * kWidth);
  bf16* const stages = shared.Take<bf16>(2 * 2 * kTile);           // two of q and dout
  float* const statistics = shared.Take<float>(2 * 2 * kQueries);  // two of lse / ln 2 and delta
  int* const ends = shared.Take<int>(kKeys);

  const int64_t b = blockIdx.z, kv = blockIdx.y, group = sizes.group();
  if (sizes.LeavesOut(b)) return;
  const int length = static_cast<int>(sizes.length), width = static_cast<int>(sizes.width);
  const int j0 = static_cast<int>(blockIdx.x) * kKeys;  // the first keys have the most queries
  const int keys = length - j0 < kKeys ? length - j0 : kKeys;
  const int64_t q_stride = sizes.heads * width, k_stride = sizes.kv_heads * width;
  const int64_t k_offset = ((b * length + j0) * sizes.kv_heads + kv) * width;
  CopyTile<kWidth, kKeys, kPacked>(k + k_offset, k_stride, keys, width, k_tile);
  CopyTile<kWidth, kKeys, kPacked>(v + k_offset, k_stride, keys, width, v_tile);
  CopyAsyncCommit();
  FindEnds<kKeys>(segments + b * length, j0, length, ends);
  SyncThreads();

  const int end = ends[kKeys - 1];
  const auto copy_queries = [&](int64_t h, int i0, bf16* stage) {
    const int64_t offset = ((b * length + i0) * sizes.heads + h) * width;
    CopyTile<kWidth, kQueries, kPacked>(q + offset, q_stride, length - i0, width, stage);
    CopyTile<kWidth, kQueries, kPacked>(dout + offset, q_stride, length - i0, width, stage + kTile);
    CopyAsyncCommit();
  };
  // One of the step's statistics for each thread; probabilities past the end are 0.
  const int which = static_cast<int>(threadIdx.x) / kQueries;
  const auto fetch_statistic = [&](int64_t h, int i0) {
    const int i = i0 + static_cast<int>(threadIdx.x) % kQueries;
    const int64_t row = (b * sizes.heads + h) * length;
    if (which == 0) return i < length ? lse[row + i] * kLog2E : INFINITY;
    return which == 1 && i < length ? delta[row + i] : 0.0F;
  };
  // A step is a query head and kQueries of its queries.
  int64_t h = kv * group, next_h = h;
  int i0 = j0, next_i0 = j0;
  copy_queries(h, i0, stages);
  float statistic = fetch_statistic(h, i0);
  CopyAsyncWait<1>();
  SyncThreads();
  const int warp_row = WarpIndex() * kWarpRows, warp_j0 = j0 + warp_row;
  const int first_end = ends[warp_row], last_end = ends[warp_row + kWarpRows - 1];
  constexpr bool kHeld = kWidth <= 64;  // wider heads leave no registers for keys and values
  const LeftRows<kWidth, 1, kHeld> key_rows(k_tile, warp_row), value_rows(v_tile, warp_row);
  const float scale2 = sizes.scale * kLog2E;
  float dk_sum[1][kWidth / 8][4] = {}, dv_sum[1][kWidth / 8][4] = {};

  int current = 0;
  for (; h < (kv + 1) * group; h = next_h, i0 = next_i0) {
    bf16* const stage = stages + current * 2 * kTile;
    float* const numbers = statistics + current * 2 * kQueries;
    current ^= 1;
    if (which < 2) numbers[threadIdx.x] = statistic;
    CopyAsyncWait<0>();
    SyncThreads();
    next_i0 = i0 + kQueries;
    if (next_i0 >= end) {
      next_i0 = j0;
      ++next_h;
    }
    if (next_h < (kv + 1) * group) {
      copy_queries(next_h, next_i0, stages + current * 2 * kTile);
      statistic = fetch_statistic(next_h, next_i0);
    }
    if (i0 + kQueries <= warp_j0 || i0 >= last_end) continue;
    const bool masked = i0 < warp_j0 + kWarpRows - 1 || i0 + kQueries > first_end;

    float p[1][kQueries / 8][4] = {};
    MultiplyByRows<kWidth>(key_rows, stage, 0, p);
    OT_UNROLL
    for (int n = 0; n < kQueries / 8; ++n) {
      OT_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int query = 8 * n + Lane() % 4 * 2 + e % 2;
        p[0][n][e] = Exp2(p[0][n][e] * scale2 - numbers[query]);
      }
    }
    // Queries before the key or after its document: whatever was there becomes 0.
    const auto mask = [&](float(&x)[1][kQueries / 8][4]) {
      OT_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int row = warp_row + 8 * half + Lane() / 4;
        const int first = j0 + row - i0, last = ends[row] - i0;
        OT_UNROLL
        for (int n = 0; n < kQueries / 8; ++n) {
          OT_UNROLL
          for (int e = 0; e < 2; ++e) {
            const int query = 8 * n + Lane() % 4 * 2 + e;
            if (query < first || query >= last) x[0][n][2 * half + e] = 0;
          }
        }
      }
    };
    if (masked) mask(p);
    MultiplyTileRows<kWidth>(p, stage + kTile, 0, dv_sum);

    float ds[1][kQueries / 8][4] = {};
    MultiplyByRows<kWidth>(value_rows, stage + kTile, 0, ds);
    OT_UNROLL
    for (int n = 0; n < kQueries / 8; ++n) {
      OT_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int query = 8 * n + Lane() % 4 * 2 + e % 2;
        ds[0][n][e] = p[0][n][e] * (ds[0][n][e] - numbers[kQueries + query]);
      }
    }
    if (masked) mask(ds);
    MultiplyTileRows<kWidth>(ds, stage, 0, dk_sum);
  }

  // Through the warp's own rows of the tiles, to be written in whole lines.
  const float scales[1][2] = {{sizes.scale, sizes.scale}}, ones[1][2] = {{1, 1}};
  const int64_t offset = k_offset + warp_row * k_stride;
  SyncWarp();
  RoundToTile<kWidth>(dk_sum, scales, warp_row, k_tile);
  RoundToTile<kWidth>(dv_sum, ones, warp_row, v_tile);
  SyncWarp();
  StoreRows<kWidth, kWarpRows, kPacked>(k_tile, warp_row, k_stride, length - warp_j0, width,
                                        dk + offset);
  StoreRows<kWidth, kWarpRows, kPacked>(v_tile, warp_row, k_stride, length - warp_j0, width,
                                        dv + offset);
}

// dq. Scores are [queries, keys], as forward.
template <int kWidth, bool kPacked>
__global__ void __launch_bounds__(kThreads, 2)
    QueryGradientKernel(const bf16* dout, const bf16* q, const bf16* k, const bf16* v,
                        const int32_t* segments, const float* lse, const float* delta, bf16* dq,
                        Sizes sizes) {
  constexpr int kQueries = Tiles<kWidth>::kGradientQueries;
  constexpr int kKeys = Tiles<kWidth>::kGradientQueriesKeys;
  constexpr int kTile = kKeys * kWidth;
  static_assert(kQueries == kWarps * kWarpRows);
  Shared shared;
  bf16* const q_tile = shared.Take<bf16>(kQueries * kWidth);
  bf16* const dout_tile = shared.Take<bf16>(kQueries * kWidth);
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
  CopyTile<kWidth, kQueries, kPacked>(q + q_offset, q_stride, rows, width, q_tile);
  CopyTile<kWidth, kQueries, kPacked>(dout + q_offset, q_stride, rows, width, dout_tile);
  CopyAsyncCommit();
  FindStarts<kQueries>(segments + b * length, i0, length, starts);
  SyncThreads();

  const int first = starts[0], end = i0 + rows;
  const auto copy_keys = [&](int j0, bf16* stage) {
    const int64_t offset = k_offset + j0 * k_stride;
    CopyTile<kWidth, kKeys, kPacked>(k + offset, k_stride, end - j0, width, stage);
    CopyTile<kWidth, kKeys, kPacked>(v + offset, k_stride, end - j0, width, stage + kTile);
    CopyAsyncCommit();
  };
  copy_keys(first, stages);
  const int warp_row = WarpIndex() * kWarpRows, warp_i0 = i0 + warp_row;
  float row_lse[2], row_delta[2];  // probabilities past the end are 0
  OT_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int i = warp_i0 + 8 * half + Lane() / 4;
    const int64_t at = (b * sizes.heads + h) * length + i;
    row_lse[half] = i < length ? lse[at] * kLog2E : INFINITY;
    row_delta[half] = i < length ? delta[at] : 0.0F;
  }
  CopyAsyncWait<1>();
  SyncThreads();
  const int warp_first = starts[warp_row], last_start = starts[warp_row + kWarpRows - 1];
  constexpr bool kHeld = kWidth <= 64;
  const LeftRows<kWidth, 1, kHeld> query_rows(q_tile, warp_row), dout_rows(dout_tile, warp_row);
  const float scale2 = sizes.scale * kLog2E;
  float dq_sum[1][kWidth / 8][4] = {};

  int current = 0;
  for (int j0 = first; j0 < end; j0 += kKeys) {
    bf16* const stage = stages + current * 2 * kTile;
    current ^= 1;
    CopyAsyncWait<0>();
    SyncThreads();
    if (j0 + kKeys < end) copy_keys(j0 + kKeys, stages + current * 2 * kTile);
    if (j0 >= warp_i0 + kWarpRows || j0 + kKeys <= warp_first) continue;
    const bool masked = j0 + kKeys > warp_i0 + 1 || j0 < last_start;

    float p[1][kKeys / 8][4] = {}, ds[1][kKeys / 8][4] = {};
    MultiplyByRows<kWidth>(query_rows, stage, 0, p);
    MultiplyByRows<kWidth>(dout_rows, stage + kTile, 0, ds);
    OT_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = warp_row + 8 * half + Lane() / 4;
      const int first_key = masked ? starts[row] - j0 : 0;
      const int last_key = masked ? i0 + row - j0 : kKeys;
      OT_UNROLL
      for (int n = 0; n < kKeys / 8; ++n) {
        OT_UNROLL
        for (int e = 0; e < 2; ++e) {
          const int at = 2 * half + e, key = 8 * n + Lane() % 4 * 2 + e;
          const float probability = Exp2(p[0][n][at] * scale2 - row_lse[half]);
          const float gradient = probability * (ds[0][n][at] - row_delta[half]);
          ds[0][n][at] = key < first_key || key > last_key ? 0.0F : gradient;
        }
      }
    }
    MultiplyTileRows<kWidth>(ds, stage, 0, dq_sum);
  }

  const float scales[1][2] = {{sizes.scale, sizes.scale}};
  SyncWarp();
  RoundToTile<kWidth>(dq_sum, scales, warp_row, q_tile);
  SyncWarp();
  StoreRows<kWidth, kWarpRows, kPacked>(q_tile, warp_row, q_stride, length - warp_i0, width,
                                        dq + q_offset + warp_row * q_stride);
}

template <class T, int kLanes, bool kPacked>
void Delta(const Context& context, const AttentionBackwardArgs& args, const Sizes& sizes,
           float* delta) {
  const int64_t rows = sizes.batch * sizes.length * sizes.heads;
  Launch("AttentionDelta", context,
         {.blocks = CeilDiv(rows, kThreads / kLanes), .threads = kThreads},
         DeltaKernel<T, kLanes, kPacked>, args.o.data<T>(), args.dout.data<T>(), delta, sizes);
}

template <int kWidth, bool kPacked>
void Backward(const Context& context, const AttentionBackwardArgs& args, const Sizes& sizes,
              float* delta) {
  using Sizing = Tiles<kWidth>;
  Delta<bf16, kWidth / 8, kPacked>(context, args, sizes, delta);
  constexpr int64_t kKeys = Sizing::kGradientKeys, kKeysQueries = Sizing::kGradientKeysQueries;
  const LaunchShape keys_shape = {
      .blocks = CeilDiv(sizes.length, kKeys),
      .threads = kThreads,
      .shared_bytes = SharedBytes<bf16>((2 * kKeys + 4 * kKeysQueries) * kWidth) +
                      SharedBytes<float>(4 * kKeysQueries) + SharedBytes<int>(kKeys),
      .blocks_y = sizes.kv_heads,
      .blocks_z = sizes.batch,
  };
  Launch("AttentionKeyGradient", context, keys_shape, KeyGradientKernel<kWidth, kPacked>,
         args.dout.data<bf16>(), args.q.data<bf16>(), args.k.data<bf16>(), args.v.data<bf16>(),
         args.segments.data<int32_t>(), args.lse.data<float>(), delta, args.dk.data<bf16>(),
         args.dv.data<bf16>(), sizes);
  constexpr int64_t kQueries = Sizing::kGradientQueries;
  const LaunchShape queries_shape = {
      .blocks = CeilDiv(sizes.length, kQueries),
      .threads = kThreads,
      .shared_bytes =
          SharedBytes<bf16>((2 * kQueries + 4 * Sizing::kGradientQueriesKeys) * kWidth) +
          SharedBytes<int>(kQueries),
      .blocks_y = sizes.heads,
      .blocks_z = sizes.batch,
  };
  Launch("AttentionQueryGradient", context, queries_shape, QueryGradientKernel<kWidth, kPacked>,
         args.dout.data<bf16>(), args.q.data<bf16>(), args.k.data<bf16>(), args.v.data<bf16>(),
         args.segments.data<int32_t>(), args.lse.data<float>(), delta, args.dq.data<bf16>(), sizes);
}

}  // namespace
}  // namespace attention

void AttentionBackward(const Context& context, const AttentionBackwardArgs& args) {
  AttentionBackwardExcept(context, args, nullptr);
}

void AttentionBackwardExcept(const Context& context, const AttentionBackwardArgs& args,
                             const int32_t* taken) {
  using namespace attention;  // NOLINT(google-build-using-namespace)
  Sizes sizes = SizesOf(args.q, args.k, args.segments, args.scale);
  sizes.taken = taken;
  auto* const delta = static_cast<float*>(
      context.Scratch(args.lse.elements() * static_cast<int64_t>(sizeof(float))));
  if (args.q.dtype() == DType::kF32 && taken == nullptr) {
    Delta<float, 16, false>(context, args, sizes, delta);
    return AttentionBackwardF32(context, args, delta);
  }
  OT_CHECK(args.q.dtype() == DType::kBF16)
      << "the CUDA backend has no attention for " << NameOf(args.q.dtype());
  const bool packed =
      AllPacked(sizes.width, args.dout, args.q, args.k, args.v, args.o, args.dq, args.dk, args.dv);
  ByWidth(sizes.width, packed, [&](auto padded, auto is_packed) {
    Backward<padded(), is_packed()>(context, args, sizes, delta);
  });
}

}  // namespace overtok::OT_BACKEND
