// Sums of columns in the order of the rows. A block takes 32 columns: its warps fetch a tile of
// rows together, so that many reads are under way, and the first warp adds them up one after
// another from shared memory.
// Bytes: 4 rows width read, 4 width written; rows width additions.
#include "core/cuda/sum_rows.h"

namespace overtok::OT_BACKEND {
namespace {

constexpr int kWarps = 8;
// Rows that a warp fetches at a time: with 8 warps 16 KB are under way in each block, and the 32
// blocks of 1024 columns alone ask for 512 KB.
constexpr int kFetched = 16;
constexpr int kTileRows = kWarps * kFetched;

__global__ void __launch_bounds__(kWarps* kWarp)
    SumRowsKernel(const float* partial, int64_t rows, int64_t width, bool accumulate, float* out) {
  Shared shared;
  float* tile = shared.Take<float>(int64_t{kTileRows} * kWarp);
  const int lane = Lane(), warp = WarpIndex();
  const int64_t column = int64_t{blockIdx.x} * kWarp + lane;
  float sum = 0;
  for (int64_t first = 0; first < rows; first += kTileRows) {
    float fetched[kFetched];
    for (int i = 0; i < kFetched; ++i) {
      const int64_t row = first + warp * kFetched + i;
      fetched[i] = row < rows && column < width ? partial[row * width + column] : 0.0F;
    }
    for (int i = 0; i < kFetched; ++i) tile[(warp * kFetched + i) * kWarp + lane] = fetched[i];
    SyncThreads();
    if (warp == 0) {
      const int count = rows - first < kTileRows ? static_cast<int>(rows - first) : kTileRows;
      for (int r = 0; r < count; ++r) sum += tile[r * kWarp + lane];
    }
    SyncThreads();
  }
  if (warp != 0 || column >= width) return;
  out[column] = accumulate ? sum + out[column] : sum;
}

}  // namespace

void SumRows(const Context& context, const float* partial, int64_t rows, int64_t width,
             bool accumulate, float* out) {
  Launch("SumRows", context,
         {.blocks = CeilDiv(width, kWarp),
          .threads = kWarps * kWarp,
          .shared_bytes = SharedBytes<float>(int64_t{kTileRows} * kWarp)},
         SumRowsKernel, partial, rows, width, accumulate, out);
}

}  // namespace overtok::OT_BACKEND
