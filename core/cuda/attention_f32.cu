// Attention of f32 activations, both directions, without tensor cores: to check with, not to train
// with. A block takes 32 rows (queries, or keys for their gradients), eight in each of its four
// warps, and walks over what they need in tiles of 32, one row a lane. Scores exist for one tile at
// a time. FLOPs are those of the bf16 kernels; every operand of a multiplication comes from shared
// memory, one load for eight products.
#include "core/cuda/attention.h"

namespace overtok::OT_BACKEND {
namespace attention {
namespace {

constexpr int kRows = 32, kOwn = kRows / kWarps;  // rows of a tile, of a warp
constexpr int kMostColumns = 4;                   // groups of 32 columns

// Tiles in shared memory: rows of `groups` x 32 columns, zeros beyond the width, an odd number of
// words apart, so that the same column of 32 rows lies in 32 banks.
struct RowLayout {
  int width, groups;
  __device__ int stride() const { return groups * kWarp + 1; }
};
__device__ __forceinline__ RowLayout LayoutOf(int64_t width) {
  return {static_cast<int>(width), static_cast<int>((width + kWarp - 1) / kWarp)};
}

// tile[r, :] = from[r * stride + :width], zeros beyond `rows` and width. By all threads.
__device__ __forceinline__ void Load(const float* from, int64_t stride, int rows,
                                     const RowLayout& layout, float* tile) {
  for (int row = WarpIndex(); row < kRows; row += kWarps) {
    for (int column = Lane(); column < layout.groups * kWarp; column += kWarp) {
      const bool valid = row < rows && column < layout.width;
      tile[row * layout.stride() + column] = valid ? from[row * stride + column] : 0.0F;
    }
  }
}

// dots[r] = own row r of this warp times row Lane() of the other tile.
__device__ __forceinline__ void Dots(const float* own, const float* other, const RowLayout& layout,
                                     float (&dots)[kOwn]) {
  const int stride = layout.stride();
  const float* const mine = own + WarpIndex() * kOwn * stride;
  const float* const theirs = other + Lane() * stride;
  OT_UNROLL
  for (int r = 0; r < kOwn; ++r) dots[r] = 0;
  for (int d = 0; d < layout.width; ++d) {
    const float value = theirs[d];
    OT_UNROLL
    for (int r = 0; r < kOwn; ++r) dots[r] += mine[r * stride + d] * value;
  }
}

// acc[r, Lane() + 32 g] += sum over the other rows of weights[own row r, row] * tile[row, column].
__device__ __forceinline__ void Accumulate(const float* weights, const float* tile,
                                           const RowLayout& layout,
                                           float (&acc)[kOwn][kMostColumns]) {
  const int stride = layout.stride();
  const float* const mine = weights + WarpIndex() * kOwn * kRows;
  for (int row = 0; row < kRows; ++row) {
    OT_UNROLL
    for (int g = 0; g < kMostColumns; ++g) {
      if (g >= layout.groups) continue;
      const float value = tile[row * stride + Lane() + kWarp * g];
      OT_UNROLL
      for (int r = 0; r < kOwn; ++r) acc[r][g] += mine[r * kRows + row] * value;
    }
  }
}

// to[r, :] = factors[r] * acc[r, :] for this warp's rows below `rows`.
__device__ __forceinline__ void Store(const float (&acc)[kOwn][kMostColumns],
                                      const float (&factors)[kOwn], const RowLayout& layout,
                                      int rows, int64_t stride, float* to) {
  OT_UNROLL
  for (int r = 0; r < kOwn; ++r) {
    const int row = WarpIndex() * kOwn + r;
    OT_UNROLL
    for (int g = 0; g < kMostColumns; ++g) {
      const int column = Lane() + kWarp * g;
      if (row < rows && column < layout.width) to[row * stride + column] = acc[r][g] * factors[r];
    }
  }
}

// The rows of a block: kRows queries (or keys) of one head of one window.
struct Place {
  int64_t b, h;
  int first, rows, length;
  int64_t stride, offset;  // of rows of queries (keys): elements

  __device__ Place(const Sizes& sizes, int64_t heads)
      : b(blockIdx.z), h(blockIdx.y), length(static_cast<int>(sizes.length)) {
    first = static_cast<int>(blockIdx.x) * kRows;
    rows = length - first < kRows ? length - first : kRows;
    stride = heads * sizes.width;
    offset = ((b * length + first) * heads + h) * sizes.width;
  }
};

__global__ void ForwardF32Kernel(const float* q, const float* k, const float* v,
                                 const int32_t* segments, float* o, float* lse, Sizes sizes) {
  const RowLayout layout = LayoutOf(sizes.width);
  const int64_t tile = kRows * layout.stride();
  Shared shared;
  float* const q_tile = shared.Take<float>(tile);
  float* const k_tile = shared.Take<float>(tile);
  float* const v_tile = shared.Take<float>(tile);
  float* const p_tile = shared.Take<float>(kRows * kRows);
  int* const starts = shared.Take<int>(kRows);
  const Place at(sizes, sizes.heads);
  const int64_t k_stride = sizes.kv_heads * sizes.width;
  const int64_t k_offset = (at.b * at.length * sizes.kv_heads + at.h / sizes.group()) * sizes.width;
  segments += at.b * at.length;
  Load(q + at.offset, at.stride, at.rows, layout, q_tile);
  FindStarts<kRows>(segments, at.first, at.length, starts);
  SyncThreads();

  float acc[kOwn][kMostColumns] = {}, most[kOwn], sum[kOwn] = {}, s[kOwn];
  for (float& m : most) m = -INFINITY;
  for (int j0 = starts[0]; j0 < at.first + at.rows; j0 += kRows) {
    SyncThreads();  // the last step's readers
    const int64_t offset = k_offset + j0 * k_stride;
    Load(k + offset, k_stride, at.length - j0, layout, k_tile);
    Load(v + offset, k_stride, at.length - j0, layout, v_tile);
    SyncThreads();
    Dots(q_tile, k_tile, layout, s);
    OT_UNROLL
    for (int r = 0; r < kOwn; ++r) {
      const int row = WarpIndex() * kOwn + r, j = j0 + Lane();
      const bool seen = j <= at.first + row && j >= starts[row];
      const float score = seen ? s[r] * sizes.scale : -INFINITY;
      const float largest = fmaxf(most[r], WarpMax(score));
      // A query that has seen no key yet: 0 instead of -inf, lest -inf - -inf be NaN.
      const float zero_point = largest == -INFINITY ? 0.0F : largest;
      const float p = expf(score - zero_point), factor = expf(most[r] - zero_point);
      most[r] = largest;
      sum[r] = sum[r] * factor + p;
      OT_UNROLL
      for (int g = 0; g < kMostColumns; ++g) acc[r][g] *= factor;
      p_tile[row * kRows + Lane()] = p;
    }
    SyncWarp();
    Accumulate(p_tile, v_tile, layout, acc);
  }
  float factors[kOwn];
  OT_UNROLL
  for (int r = 0; r < kOwn; ++r) {
    const float total = WarpSum(sum[r]);
    factors[r] = 1.0F / total;
    const int row = WarpIndex() * kOwn + r;
    if (row < at.rows && Lane() == 0) {
      lse[(at.b * sizes.heads + at.h) * at.length + at.first + row] = most[r] + logf(total);
    }
  }
  Store(acc, factors, layout, at.rows, at.stride, o + at.offset);
}

__global__ void QueryGradientF32Kernel(const float* dout, const float* q, const float* k,
                                       const float* v, const int32_t* segments, const float* lse,
                                       const float* delta, float* dq, Sizes sizes) {
  const RowLayout layout = LayoutOf(sizes.width);
  const int64_t tile = kRows * layout.stride();
  Shared shared;
  float* const q_tile = shared.Take<float>(tile);
  float* const dout_tile = shared.Take<float>(tile);
  float* const k_tile = shared.Take<float>(tile);
  float* const v_tile = shared.Take<float>(tile);
  float* const ds_tile = shared.Take<float>(kRows * kRows);
  int* const starts = shared.Take<int>(kRows);
  const Place at(sizes, sizes.heads);
  const int64_t k_stride = sizes.kv_heads * sizes.width;
  const int64_t k_offset = (at.b * at.length * sizes.kv_heads + at.h / sizes.group()) * sizes.width;
  const int64_t statistics = (at.b * sizes.heads + at.h) * at.length + at.first;
  Load(q + at.offset, at.stride, at.rows, layout, q_tile);
  Load(dout + at.offset, at.stride, at.rows, layout, dout_tile);
  FindStarts<kRows>(segments + at.b * at.length, at.first, at.length, starts);
  SyncThreads();

  float acc[kOwn][kMostColumns] = {}, s[kOwn], dp[kOwn];
  for (int j0 = starts[0]; j0 < at.first + at.rows; j0 += kRows) {
    SyncThreads();
    const int64_t offset = k_offset + j0 * k_stride;
    Load(k + offset, k_stride, at.length - j0, layout, k_tile);
    Load(v + offset, k_stride, at.length - j0, layout, v_tile);
    SyncThreads();
    Dots(q_tile, k_tile, layout, s);
    Dots(dout_tile, v_tile, layout, dp);
    OT_UNROLL
    for (int r = 0; r < kOwn; ++r) {
      const int row = WarpIndex() * kOwn + r, j = j0 + Lane();
      const bool seen = row < at.rows && j <= at.first + row && j >= starts[row];
      float ds = 0;
      if (seen) {
        ds = expf(s[r] * sizes.scale - lse[statistics + row]) * (dp[r] - delta[statistics + row]);
      }
      ds_tile[row * kRows + Lane()] = ds;
    }
    SyncWarp();
    Accumulate(ds_tile, k_tile, layout, acc);
  }
  float factors[kOwn];
  for (float& factor : factors) factor = sizes.scale;
  Store(acc, factors, layout, at.rows, at.stride, dq + at.offset);
}

// Sums over the queries of the group's heads, head after head.
__global__ void KeyGradientF32Kernel(const float* dout, const float* q, const float* k,
                                     const float* v, const int32_t* segments, const float* lse,
                                     const float* delta, float* dk, float* dv, Sizes sizes) {
  const RowLayout layout = LayoutOf(sizes.width);
  const int64_t tile = kRows * layout.stride();
  Shared shared;
  float* const k_tile = shared.Take<float>(tile);
  float* const v_tile = shared.Take<float>(tile);
  float* const q_tile = shared.Take<float>(tile);
  float* const dout_tile = shared.Take<float>(tile);
  float* const p_tile = shared.Take<float>(kRows * kRows);
  float* const ds_tile = shared.Take<float>(kRows * kRows);
  int* const ends = shared.Take<int>(kRows);
  const Place at(sizes, sizes.kv_heads);
  const int64_t q_stride = sizes.heads * sizes.width;
  Load(k + at.offset, at.stride, at.rows, layout, k_tile);
  Load(v + at.offset, at.stride, at.rows, layout, v_tile);
  FindEnds<kRows>(segments + at.b * at.length, at.first, at.length, ends);
  SyncThreads();

  float dk_acc[kOwn][kMostColumns] = {}, dv_acc[kOwn][kMostColumns] = {}, s[kOwn], dp[kOwn];
  for (int64_t h = at.h * sizes.group(); h < (at.h + 1) * sizes.group(); ++h) {
    const int64_t statistics = (at.b * sizes.heads + h) * at.length;
    for (int i0 = at.first; i0 < ends[kRows - 1]; i0 += kRows) {
      SyncThreads();
      const int64_t offset = ((at.b * at.length + i0) * sizes.heads + h) * sizes.width;
      Load(q + offset, q_stride, at.length - i0, layout, q_tile);
      Load(dout + offset, q_stride, at.length - i0, layout, dout_tile);
      SyncThreads();
      const int i = i0 + Lane();
      const float row_lse = i < at.length ? lse[statistics + i] : 0.0F;
      const float row_delta = i < at.length ? delta[statistics + i] : 0.0F;
      Dots(k_tile, q_tile, layout, s);
      Dots(v_tile, dout_tile, layout, dp);
      OT_UNROLL
      for (int r = 0; r < kOwn; ++r) {
        const int row = WarpIndex() * kOwn + r;
        const bool seen = row < at.rows && i >= at.first + row && i < ends[row];
        const float p = seen ? expf(s[r] * sizes.scale - row_lse) : 0.0F;
        p_tile[row * kRows + Lane()] = p;
        ds_tile[row * kRows + Lane()] = seen ? p * (dp[r] - row_delta) : 0.0F;
      }
      SyncWarp();
      Accumulate(p_tile, dout_tile, layout, dv_acc);
      Accumulate(ds_tile, q_tile, layout, dk_acc);
    }
  }
  float scale[kOwn], one[kOwn];
  for (float& factor : scale) factor = sizes.scale;
  for (float& factor : one) factor = 1;
  Store(dk_acc, scale, layout, at.rows, at.stride, dk + at.offset);
  Store(dv_acc, one, layout, at.rows, at.stride, dv + at.offset);
}

LaunchShape ShapeFor(const Sizes& sizes, int64_t heads, int64_t row_tiles, int64_t weight_tiles) {
  const int64_t tile = kRows * (CeilDiv(sizes.width, kWarp) * kWarp + 1);
  return {.blocks = CeilDiv(sizes.length, kRows),
          .threads = kThreads,
          .shared_bytes = row_tiles * SharedBytes<float>(tile) +
                          weight_tiles * SharedBytes<float>(kRows * kRows) +
                          SharedBytes<int>(kRows),
          .blocks_y = heads,
          .blocks_z = sizes.batch};
}

}  // namespace
}  // namespace attention

void AttentionForwardF32(const Context& context, const AttentionForwardArgs& args) {
  const attention::Sizes sizes = attention::SizesOf(args.q, args.k, args.segments, args.scale);
  Launch("AttentionForwardF32", context, attention::ShapeFor(sizes, sizes.heads, 3, 1),
         attention::ForwardF32Kernel, args.q.data<float>(), args.k.data<float>(),
         args.v.data<float>(), args.segments.data<int32_t>(), args.o.data<float>(),
         args.lse.data<float>(), sizes);
}

void AttentionBackwardF32(const Context& context, const AttentionBackwardArgs& args,
                          const float* delta) {
  const attention::Sizes sizes = attention::SizesOf(args.q, args.k, args.segments, args.scale);
  Launch("AttentionKeyGradientF32", context, attention::ShapeFor(sizes, sizes.kv_heads, 4, 2),
         attention::KeyGradientF32Kernel, args.dout.data<float>(), args.q.data<float>(),
         args.k.data<float>(), args.v.data<float>(), args.segments.data<int32_t>(),
         args.lse.data<float>(), delta, args.dk.data<float>(), args.dv.data<float>(), sizes);
  Launch("AttentionQueryGradientF32", context, attention::ShapeFor(sizes, sizes.heads, 4, 1),
         attention::QueryGradientF32Kernel, args.dout.data<float>(), args.q.data<float>(),
         args.k.data<float>(), args.v.data<float>(), args.segments.data<int32_t>(),
         args.lse.data<float>(), delta, args.dq.data<float>(), sizes);
}

}  // namespace overtok::OT_BACKEND
