// Documents of a micro-batch as lists for packed attention (core/cuda/packed_attention.h), and the
// log-sum-exp between positions first and heads first.
//
// Lists, two launches of a block of 256 threads for each window: the first counts a window's
// documents, the second goes through the counts of the windows before it, to know whether and where
// its own are listed, and writes them; one block more fills the lists' rest. Bytes: 8 T of
// segments, and 28 for each document; B^2 / 2 additions. Nothing but the segments decides: no
// atomics. Copies of statistics: 8 T H bytes, tiles of 64 positions by all heads through shared
// memory, so that both sides are touched in whole lines.
#include "core/cuda/attention.h"
#include "core/cuda/packed_attention.h"

namespace overtok::OT_BACKEND {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

__device__ __forceinline__ bool Begins(const int32_t* segments, int64_t i) {
  return i == 0 || segments[i] != segments[i - 1];
}

__global__ void __launch_bounds__(kThreads)
    CountDocumentsKernel(const int32_t* segments, int64_t length, int32_t* counts) {
  Shared shared;
  int* const room = shared.Take<int>(kWarps);
  const int64_t b = blockIdx.x;
  segments += b * length;
  int count = 0;
  for (int64_t i = threadIdx.x; i < length; i += kThreads) count += Begins(segments, i) ? 1 : 0;
  count = BlockSum(count, room);
  if (threadIdx.x == 0) counts[b] = count;
}

// Documents that the windows before `window` have listed.
__device__ __forceinline__ int64_t ListedBefore(const int32_t* counts, int64_t window,
                                                int64_t documents) {
  int64_t listed = 0;
  for (int64_t w = 0; w < window; ++w) {
    if (listed + counts[w] <= documents) listed += counts[w];
  }
  return listed;
}

// Elements that a position takes in q, in k, and in the statistics.
struct RowElements {
  int64_t query, key, statistic;
};

__device__ __forceinline__ void Place(const DocumentLists& lists, const RowElements& row, int64_t n,
                                      int64_t position) {
  lists.query_places[n] = position * row.query;
  lists.key_places[n] = position * row.key;
  lists.statistic_places[n] = position * row.statistic;
}

__global__ void __launch_bounds__(kThreads)
    ListDocumentsKernel(const int32_t* segments, int64_t batch, int64_t length, RowElements row,
                        DocumentLists lists) {
  Shared shared;
  int* const begun = shared.Take<int>(kWarps);
  const int64_t b = blockIdx.x;
  const int64_t first = ListedBefore(lists.counts, b, lists.documents);
  if (b == batch) {
    for (int64_t n = first + threadIdx.x; n <= lists.documents; n += kThreads) {
      if (n < lists.documents) lists.lengths[n] = 0;
      Place(lists, row, n, batch * length);
    }
    return;
  }
  const int64_t count = lists.counts[b];
  const bool taken = first + count <= lists.documents;
  if (threadIdx.x == 0) lists.taken[b] = taken ? 1 : 0;
  if (!taken) return;
  segments += b * length;
  int64_t next = first;  // the document that begins next
  for (int64_t i0 = 0; i0 < length; i0 += kThreads) {
    const int64_t i = i0 + threadIdx.x;
    const bool begins = i < length && Begins(segments, i);
    const unsigned lanes = VoteBallot(begins);
    if (Lane() == 0) begun[WarpIndex()] = CountBits(lanes);
    SyncThreads();
    int before = CountBits(lanes & ((1U << Lane()) - 1U)), all = 0;
    for (int w = 0; w < kWarps; ++w) {
      if (w < WarpIndex()) before += begun[w];
      all += begun[w];
    }
    if (begins) Place(lists, row, next + before, b * length + i);
    next += all;
    SyncThreads();
  }
  for (int64_t n = first + threadIdx.x; n < first + count; n += kThreads) {
    const int64_t end =
        n + 1 < first + count ? lists.statistic_places[n + 1] / row.statistic : (b + 1) * length;
    lists.lengths[n] = static_cast<int32_t>(end - lists.statistic_places[n] / row.statistic);
  }
}

void ListDocuments(const Context& context, const Tensor& segments, const PackedSizes& sizes,
                   const DocumentLists& lists) {
  Launch("CountDocuments", context,
         {.blocks = sizes.batch, .threads = kThreads, .shared_bytes = SharedBytes<int>(kWarps)},
         CountDocumentsKernel, segments.data<int32_t>(), sizes.length, lists.counts);
  const RowElements row = {sizes.heads * sizes.width, sizes.kv_heads * sizes.width, sizes.heads};
  Launch("ListDocuments", context,
         {.blocks = sizes.batch + 1, .threads = kThreads, .shared_bytes = SharedBytes<int>(kWarps)},
         ListDocumentsKernel, segments.data<int32_t>(), sizes.batch, sizes.length, row, lists);
}

constexpr int kPositions = 64;  // of a tile

// kToLse: lse [B, H, S] from statistics [B, S, H], else the other way round.
template <bool kToLse>
__global__ void __launch_bounds__(kThreads)
    TransposeKernel(const float* from, const int32_t* taken, float* to, int64_t length, int heads) {
  Shared shared;
  const int pitch = heads | 1;  // odd: positions below each other lie in different banks
  float* const tile = shared.Take<float>(int64_t{kPositions} * pitch);
  const int64_t b = blockIdx.y, i0 = int64_t{blockIdx.x} * kPositions;
  if (taken[b] == 0) return;
  const int rows = static_cast<int>(length - i0 < kPositions ? length - i0 : kPositions);
  const int64_t by_head = b * heads * length + i0, by_position = (b * length + i0) * heads;
  for (int e = static_cast<int>(threadIdx.x); e < kPositions * heads; e += kThreads) {
    const int h = kToLse ? e % heads : e / kPositions, i = kToLse ? e / heads : e % kPositions;
    if (i < rows) tile[i * pitch + h] = from[kToLse ? by_position + e : by_head + h * length + i];
  }
  SyncThreads();
  for (int e = static_cast<int>(threadIdx.x); e < kPositions * heads; e += kThreads) {
    const int h = kToLse ? e / kPositions : e % heads, i = kToLse ? e % kPositions : e / heads;
    if (i < rows) to[kToLse ? by_head + h * length + i : by_position + e] = tile[i * pitch + h];
  }
}

template <bool kToLse>
void Transpose(const Context& context, const float* from, const int32_t* taken, float* to,
               const Tensor& lse) {
  const int64_t heads = lse.dim(1), length = lse.dim(2);
  Launch("TransposeStatistics", context,
         {.blocks = CeilDiv(length, kPositions),
          .threads = kThreads,
          .shared_bytes = SharedBytes<float>(kPositions * (heads | 1)),
          .blocks_y = lse.dim(0)},
         TransposeKernel<kToLse>, from, taken, to, length, static_cast<int>(heads));
}

void StatisticsToLse(const Context& context, const float* statistics, const int32_t* taken,
                     const Tensor& lse) {
  Transpose<true>(context, statistics, taken, lse.data<float>(), lse);
}
void LseToStatistics(const Context& context, const Tensor& lse, const int32_t* taken,
                     float* statistics) {
  Transpose<false>(context, lse.data<float>(), taken, statistics, lse);
}

}  // namespace

const PackedKernels& KernelsOfPacked() {
  static const PackedKernels kernels = {.list = ListDocuments,
                                        .statistics_to_lse = StatisticsToLse,
                                        .lse_to_statistics = LseToStatistics,
                                        .forward = AttentionForwardExcept,
                                        .backward = AttentionBackwardExcept};
  return kernels;
}

}  // namespace overtok::OT_BACKEND
