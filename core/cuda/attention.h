// What the attention kernels share: which keys a tile of queries needs (and the other way round),
// tiles in shared memory, and their products on tensor cores.
//
// Tiles of bf16 are [rows, kWidth] with kWidth 64 or 128, widths between padded with zeros. A row
// is a whole number of 128-byte lines, so that rows below each other lie in the same banks: the
// 16-byte chunk c of row r is kept at c ^ (r % 8), which puts the eight rows that LoadMatrix4 reads
// at once, and the eight chunks of a row that are copied at once, into different banks.
#pragma once

#include "core/cuda/kernels.h"

namespace overtok::OT_BACKEND {

// AttentionForward and AttentionBackward for the windows b with taken[b] == 0 ([B] i32, on the
// device; null: for all); nothing is written for the others. With `taken`, bf16 alone.
void AttentionForwardExcept(const Context& context, const AttentionForwardArgs& args,
                            const int32_t* taken);
void AttentionBackwardExcept(const Context& context, const AttentionBackwardArgs& args,
                             const int32_t* taken);

// In f32, without tensor cores (core/cuda/attention_f32.cu); `delta`: [B, H, S] scratch.
void AttentionForwardF32(const Context& context, const AttentionForwardArgs& args);
void AttentionBackwardF32(const Context& context, const AttentionBackwardArgs& args,
                          const float* delta);

namespace attention {

// Of all kernels here: four warps. Two or three such blocks share a multiprocessor; the softmax of
// one runs beside the products of another.
inline constexpr int kThreads = 128;
inline constexpr int kWarps = kThreads / kWarp;

// Tiles of the bf16 kernels: queries of a block and keys of a step forward; keys of a block and
// queries of a step for the gradients of keys and values; queries of a block and keys of a step for
// those of queries. Wider heads take smaller steps where sums of 128 columns leave few registers.
template <int kWidth>
struct Tiles {
  static constexpr int kForwardQueries = 128, kForwardKeys = kWidth <= 64 ? 64 : 32;
  static constexpr int kGradientKeys = 64, kGradientKeysQueries = kWidth <= 64 ? 64 : 32;
  static constexpr int kGradientQueries = 64, kGradientQueriesKeys = 64;
};

struct Sizes {
  int64_t batch, length, heads, kv_heads, width;
  float scale;
  const int32_t* taken = nullptr;  // windows that are left out

  __device__ bool LeavesOut(int64_t b) const { return taken != nullptr && taken[b] != 0; }
  __device__ int64_t group() const { return heads / kv_heads; }
};

inline constexpr float kLog2E = 1.44269504088896340736F;

// The first position of [begin, end) whose value is at least `value` in a row that never falls;
// end where there is none. A warp calls it alike; it looks at 32 positions at a time: three rounds
// for 32,768.
__device__ __forceinline__ int FirstNotBelow(const int32_t* row, int begin, int end,
                                             int64_t value) {
  while (begin < end) {
    const int piece = (end - begin + kWarp - 1) / kWarp;  // positions of each lane
    const int last = begin + (Lane() + 1) * piece - 1;
    const bool below = last < end && row[last] < value;
    begin += CountBits(VoteBallot(below)) * piece;
    if (piece == 1) break;
    const int known = begin + piece - 1;  // not below, if it is there
    end = known < end ? known : end;
  }
  return begin < end ? begin : end;
}

// First and last + 1 position of the document that position i of a window lies in.
__device__ __forceinline__ int DocumentStart(const int32_t* segments, int i) {
  return FirstNotBelow(segments, 0, i, segments[i]);
}
__device__ __forceinline__ int DocumentEnd(const int32_t* segments, int i, int length) {
  return FirstNotBelow(segments, i + 1, length, int64_t{segments[i]} + 1);
}

// starts[r] = first position of the document of i0 + r, for kRows positions; past the end, that of
// the last position. All threads call; a barrier stands before the use.
template <int kRows>
__device__ __forceinline__ void FindStarts(const int32_t* segments, int i0, int length,
                                           int* starts) {
  static_assert(kRows % kWarp == 0 && kRows <= kThreads);
  const int row = static_cast<int>(threadIdx.x);
  if (row >= kRows) return;
  const int first = i0 + WarpIndex() * kWarp < length ? i0 + WarpIndex() * kWarp : length - 1;
  const int i = i0 + row < length ? i0 + row : length - 1;
  int start = DocumentStart(segments, first);
  if (i > first && segments[i] != segments[i - 1]) start = i;
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const int before = ShuffleUp(start, distance);
    start = before > start ? before : start;
  }
  starts[row] = start;
}

// ends[r] = last + 1 position of the document of j0 + r, in the same way.
template <int kRows>
__device__ __forceinline__ void FindEnds(const int32_t* segments, int j0, int length, int* ends) {
  static_assert(kRows % kWarp == 0 && kRows <= kThreads);
  const int row = static_cast<int>(threadIdx.x);
  if (row >= kRows) return;
  const int after = j0 + (WarpIndex() + 1) * kWarp - 1;
  const int last = after < length ? after : length - 1;
  const int j = j0 + row < length ? j0 + row : length - 1;
  int end = DocumentEnd(segments, last, length);
  if (j < last && segments[j] != segments[j + 1]) end = j + 1;
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const int other = Shuffle(end, Lane() + distance < kWarp ? Lane() + distance : kWarp - 1);
    end = other < end ? other : end;
  }
  ends[row] = end;
}

// Where the 16-byte chunk of a row lies.
template <int kWidth>
__device__ __forceinline__ int ChunkAt(int row, int chunk) {
  return row * kWidth + (chunk ^ (row & 7)) * 8;
}

// tile[r, :] = from[r * stride + :width] for r < rows, zeros elsewhere up to [kRows, kWidth]. By
// all threads; in packs without waiting (the caller commits and waits), else at once.
template <int kWidth, int kRows, bool kPacked>
__device__ __forceinline__ void CopyTile(const bf16* from, int64_t stride, int rows, int width,
                                         bf16* tile) {
  constexpr int kChunks = kWidth / 8, kStep = kThreads / kChunks;
  static_assert(kStep % 8 == 0 && kRows % kStep == 0);  // the same chunk in all rows of a thread
  const int chunk = static_cast<int>(threadIdx.x) % kChunks;
  const int first = static_cast<int>(threadIdx.x) / kChunks;
  bf16* const to = tile + ChunkAt<kWidth>(first, chunk);
  const bf16* const source = from + first * stride + chunk * 8;
  OT_UNROLL
  for (int step = 0; step < kRows / kStep; ++step) {
    const int row = first + step * kStep;
    if constexpr (kPacked) {
      const bool valid = row < rows && chunk * 8 < width;
      CopyAsync16(to + step * kStep * kWidth, valid ? source + step * kStep * stride : from, valid);
    } else {
      Pack<bf16, 8> pack;
      for (int e = 0; e < 8; ++e) {
        const bool valid = row < rows && chunk * 8 + e < width;
        pack.v[e] = valid ? source[step * kStep * stride + e] : bf16(0.0F);
      }
      StorePack<8>(to + step * kStep * kWidth, pack);
    }
  }
}

// Rows [first, first + kRows) of a tile to to[r * stride + :width], r < rows counted from `first`:
// by one warp.
template <int kWidth, int kRows, bool kPacked>
__device__ __forceinline__ void StoreRows(const bf16* tile, int first, int64_t stride, int rows,
                                          int width, bf16* to) {
  constexpr int kChunks = kWidth / 8, kStep = kWarp / kChunks;
  const int chunk = Lane() % kChunks;
  for (int row = Lane() / kChunks; row < kRows; row += kStep) {
    if (row >= rows || chunk * 8 >= width) continue;
    const Pack<bf16, 8> pack = LoadPack<8>(tile + ChunkAt<kWidth>(first + row, chunk));
    if constexpr (kPacked) {
      StorePack<8>(to + row * stride + chunk * 8, pack);
    } else {
      for (int e = 0; e < 8 && chunk * 8 + e < width; ++e) {
        to[row * stride + chunk * 8 + e] = pack.v[e];
      }
    }
  }
}

// The left operand of a product: kTiles x 16 rows of a tile, from `row` on, by steps of 16 columns;
// held in registers, or read from shared memory each time.
template <int kWidth, int kTiles, bool kHeld>
class LeftRows {
 public:
  __device__ __forceinline__ LeftRows(const bf16* tile, int row) {
    at_ = tile + (row + Lane() % 16) * kWidth;
    if constexpr (kHeld) {
      OT_UNROLL
      for (int step = 0; step < kWidth / 16; ++step) Load(step, held_[step]);
    }
  }
  __device__ __forceinline__ void Get(int step, uint32_t (&a)[kTiles][4]) const {
    if constexpr (kHeld) {
      OT_UNROLL
      for (int m = 0; m < kTiles; ++m) {
        OT_UNROLL
        for (int i = 0; i < 4; ++i) a[m][i] = held_[step][m][i];
      }
    } else {
      Load(step, a);
    }
  }

 private:
  __device__ __forceinline__ void Load(int step, uint32_t (&a)[kTiles][4]) const {
    OT_UNROLL
    for (int m = 0; m < kTiles; ++m) {
      LoadMatrix4(a[m], at_ + m * 16 * kWidth + ((2 * step + Lane() / 16) ^ (Lane() & 7)) * 8);
    }
  }
  const bf16* at_;
  uint32_t held_[kHeld ? kWidth / 16 : 1][kTiles][4];
};

// Two neighbouring tiles of d with the two right operands that one LoadMatrix4 brings.
__device__ __forceinline__ void MultiplyPair(float (&left)[4], float (&right)[4],
                                             const uint32_t (&a)[4], const uint32_t (&b)[4]) {
  const uint32_t b_left[2] = {b[0], b[1]}, b_right[2] = {b[2], b[3]};
  MultiplyTile(left, a, b_left);
  MultiplyTile(right, a, b_right);
}

// d [16 kTiles, 8 kColumns] += a [16 kTiles, kWidth] times the transpose of rows
// [row, row + 8 kColumns) of the tile.
template <int kWidth, int kTiles, int kColumns, class Left>
__device__ __forceinline__ void MultiplyByRows(const Left& left, const bf16* tile, int row,
                                               float (&d)[kTiles][kColumns][4]) {
  const bf16* const at = tile + (row + Lane() % 8 + Lane() / 16 * 8) * kWidth;
  OT_UNROLL
  for (int step = 0; step < kWidth / 16; ++step) {
    uint32_t a[kTiles][4];
    left.Get(step, a);
    const int chunk = ((2 * step + Lane() / 8 % 2) ^ (Lane() & 7)) * 8;
    OT_UNROLL
    for (int n = 0; n < kColumns; n += 2) {
      uint32_t b[4];
      LoadMatrix4(b, at + n * 8 * kWidth + chunk);
      OT_UNROLL
      for (int m = 0; m < kTiles; ++m) MultiplyPair(d[m][n], d[m][n + 1], a[m], b);
    }
  }
}

// d [16 kTiles, kWidth] += p [16 kTiles, 8 kColumns], rounded to bf16, times rows
// [row, row + 8 kColumns) of the tile. What a lane holds of p as a result is what it holds of it as
// a left operand.
template <int kWidth, int kTiles, int kColumns>
__device__ __forceinline__ void MultiplyTileRows(const float (&p)[kTiles][kColumns][4],
                                                 const bf16* tile, int row,
                                                 float (&d)[kTiles][kWidth / 8][4]) {
  const bf16* const at = tile + (row + Lane() % 16) * kWidth;
  OT_UNROLL
  for (int step = 0; step < kColumns / 2; ++step) {
    uint32_t a[kTiles][4];
    OT_UNROLL
    for (int m = 0; m < kTiles; ++m) {
      OT_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float(&pair)[4] = p[m][2 * step + i / 2];
        a[m][i] = PackPair(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
      }
    }
    OT_UNROLL
    for (int n = 0; n < kWidth / 8; n += 2) {
      uint32_t b[4];
      LoadMatrix4Transposed(b, at + step * 16 * kWidth + ((n + Lane() / 16) ^ (Lane() & 7)) * 8);
      OT_UNROLL
      for (int m = 0; m < kTiles; ++m) MultiplyPair(d[m][n], d[m][n + 1], a[m], b);
    }
  }
}

// factor * d, rounded, into rows [row, row + 16 kTiles) of a tile, each tile of 16 rows with two
// factors for each lane: of rows Lane() / 4 and Lane() / 4 + 8.
template <int kWidth, int kTiles>
__device__ __forceinline__ void RoundToTile(const float (&d)[kTiles][kWidth / 8][4],
                                            const float (&factors)[kTiles][2], int row,
                                            bf16* tile) {
  OT_UNROLL
  for (int m = 0; m < kTiles; ++m) {
    OT_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float factor = factors[m][half];
      const int to = row + 16 * m + 8 * half + Lane() / 4;
      OT_UNROLL
      for (int n = 0; n < kWidth / 8; ++n) {
        const uint32_t pair = PackPair(d[m][n][2 * half] * factor, d[m][n][2 * half + 1] * factor);
        *reinterpret_cast<uint32_t*>(tile + ChunkAt<kWidth>(to, n) + Lane() % 4 * 2) = pair;
      }
    }
  }
}

// Whether all of a call's tensors can be read in chunks of 16 bytes.
template <class... Tensors>
bool AllPacked(int64_t width, const Tensors&... tensors) {
  return (FitsPacks<8>(tensors.template data<bf16>(), width) && ...);
}

// What these kernels can do; anything else is named here.
inline Sizes SizesOf(const Tensor& q, const Tensor& k, const Tensor& segments, double scale) {
  const Sizes sizes = {segments.dim(0), segments.dim(1), q.dim(1),
                       k.dim(1),        q.dim(2),        static_cast<float>(scale)};
  OT_CHECK(sizes.width % 2 == 0 && sizes.width <= 128)
      << "attention on this device takes heads of an even width up to 128, not " << sizes.width;
  OT_CHECK(sizes.scale > 0) << "attention on this device takes a positive scale, not " << scale;
  return sizes;
}

// Calls f(std::integral_constant<int, kWidth>(), std::bool_constant<kPacked>()).
template <class F>
void ByWidth(int64_t width, bool packed, const F& f) {
  const auto with_width = [&](auto padded) {
    if (packed) {
      f(padded, std::true_type());
    } else {
      f(padded, std::false_type());
    }
  };
  if (width <= 64) {
    with_width(std::integral_constant<int, 64>());
  } else {
    with_width(std::integral_constant<int, 128>());
  }
}

}  // namespace attention
}  // namespace overtok::OT_BACKEND
