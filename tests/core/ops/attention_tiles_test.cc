// Which tiles the attention kernels of the CUDA backend visit: as many as documents need and no
// more. The helpers run on the emulated device; what they find is held against every position's
// document, one by one, and values that no query of a tile needs, made NaN, must not reach it.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/cuda/attention.h"
#include "core/cuda/emulation/device.h"
#include "core/ops/attention.h"
#include "tests/core/ops/op_harness.h"

namespace overtok {
namespace {

using testing::Buffer;
using testing::ScratchContext;

namespace attention = emulated::attention;
using ForwardTiles = attention::Tiles<64>;

// A window whose documents begin at `borders`, ids rising by 1, 2, 1, 2...
std::vector<int32_t> Segments(int length, const std::vector<int>& borders) {
  std::vector<int32_t> segments(static_cast<size_t>(length), 5);
  for (size_t d = 0; d < borders.size(); ++d) {
    for (int i = borders[d]; i < length; ++i)
      segments[static_cast<size_t>(i)] += 1 + static_cast<int32_t>(d % 2);
  }
  return segments;
}

struct Window {
  int length;
  std::vector<int> borders;
};

// Lengths below, at and across tiles and the search's pieces of 32 and 1,024 positions; documents
// of one position, at the borders of tiles and of warps, and inside.
std::vector<Window> Windows() {
  std::vector<Window> windows = {{1, {}},
                                 {64, {}},
                                 {65, {64}},
                                 {200, {1, 2, 3, 31, 32, 33, 100, 127, 128, 199}},
                                 {257, {64, 128, 256}},
                                 {1500, {1100}},
                                 {4100, {5, 1023, 1024, 1025, 3000, 4099}}};
  Window each = {150, {}};
  for (int i = 1; i < each.length; ++i) each.borders.push_back(i);
  windows.push_back(each);
  return windows;
}

// For blocks of kRows positions from kRows * blockIdx.x on.
template <int kRows>
void FindKernel(const int32_t* segments, int length, int32_t* starts, int32_t* ends) {
  emulated::Shared shared;
  int* const room = shared.Take<int>(2 * kRows);
  const int first = static_cast<int>(emulation::current_block->index.x) * kRows;
  attention::FindStarts<kRows>(segments, first, length, room);
  attention::FindEnds<kRows>(segments, first, length, room + kRows);
  emulated::SyncThreads();
  for (int r = static_cast<int>(emulation::current_thread->index.x); r < kRows;
       r += attention::kThreads) {
    if (first + r >= length) continue;
    starts[first + r] = room[r];
    ends[first + r] = room[kRows + r];
  }
}

struct Found {
  std::vector<int32_t> starts, ends;
};
template <int kRows>
Found Find(const std::vector<int32_t>& segments) {
  const int length = static_cast<int>(segments.size());
  Found found = {std::vector<int32_t>(segments.size(), -1),
                 std::vector<int32_t>(segments.size(), -1)};
  const Context context(EmulatedDevice());
  emulated::Launch("FindDocuments", context,
                   {.blocks = emulated::CeilDiv(length, kRows),
                    .threads = attention::kThreads,
                    .shared_bytes = emulated::SharedBytes<int>(2 * kRows)},
                   FindKernel<kRows>, segments.data(), length, found.starts.data(),
                   found.ends.data());
  return found;
}

template <int kRows>
void ExpectDocuments(const Window& window) {
  const std::vector<int32_t> segments = Segments(window.length, window.borders);
  const Found found = Find<kRows>(segments);
  for (size_t i = 0; i < segments.size(); ++i) {
    size_t start = i, end = i + 1;
    while (start > 0 && segments[start - 1] == segments[i]) --start;
    while (end < segments.size() && segments[end] == segments[i]) ++end;
    EXPECT_EQ(found.starts[i], static_cast<int32_t>(start)) << window.length << " at " << i;
    EXPECT_EQ(found.ends[i], static_cast<int32_t>(end)) << window.length << " at " << i;
  }
}

TEST(AttentionTilesTest, EveryPositionsDocumentIsFound) {
  for (const Window& window : Windows()) {
    ExpectDocuments<32>(window);
    ExpectDocuments<64>(window);
    ExpectDocuments<128>(window);
  }
}

// By pairs: of the keys that any query of [i0, end) attends to, the tiles from the first to the
// last; and the same for the queries of keys.
TEST(AttentionTilesTest, AsManyTilesAsDocumentsNeed) {
  constexpr int kQueries = ForwardTiles::kForwardQueries, kKeys = ForwardTiles::kForwardKeys;
  int64_t visited = 0, causal = 0;
  for (const Window& window : Windows()) {
    if (window.length > 1500) continue;  // pairs
    const std::vector<int32_t> segments = Segments(window.length, window.borders);
    const auto sees = [&](int i, int j) {
      return j <= i && segments[static_cast<size_t>(i)] == segments[static_cast<size_t>(j)];
    };
    const Found forward = Find<kQueries>(segments);
    for (int i0 = 0; i0 < window.length; i0 += kQueries) {
      const int end = std::min(i0 + kQueries, window.length);
      int first = end, last = 0;
      for (int i = i0; i < end; ++i) {
        for (int j = 0; j < window.length; ++j) {
          if (!sees(i, j)) continue;
          first = std::min(first, j);
          last = std::max(last, j);
        }
      }
      // The kernels' loop: from the first document's first key to the last query.
      const int64_t steps = emulated::CeilDiv(end - forward.starts[static_cast<size_t>(i0)], kKeys);
      EXPECT_EQ(steps, emulated::CeilDiv(last + 1 - first, kKeys)) << window.length << " " << i0;
      visited += steps;
      causal += emulated::CeilDiv(end, kKeys);
    }
    constexpr int kBackKeys = ForwardTiles::kGradientKeys;
    constexpr int kBackQueries = ForwardTiles::kGradientKeysQueries;
    const Found backward = Find<kBackKeys>(segments);
    for (int j0 = 0; j0 < window.length; j0 += kBackKeys) {
      const int end = std::min(j0 + kBackKeys, window.length);
      int last = 0;
      for (int j = j0; j < end; ++j) {
        for (int i = 0; i < window.length; ++i) last = sees(i, j) ? std::max(last, i) : last;
      }
      const int64_t steps =
          emulated::CeilDiv(backward.ends[static_cast<size_t>(end - 1)] - j0, kBackQueries);
      EXPECT_EQ(steps, emulated::CeilDiv(last + 1 - j0, kBackQueries))
          << window.length << " " << j0;
    }
  }
  // Documents do save tiles here.
  EXPECT_LT(visited, causal * 9 / 10);
}

// Keys that no query of a tile needs may hold anything: their tiles are not read. With documents
// that begin at 128 and 320, the queries from 128 on need no key before that, and those from 384 on
// none before 320.
TEST(AttentionTilesTest, TilesOfOtherDocumentsAreNotRead) {
  const int length = 450, width = 64;
  const std::vector<int32_t> segments = Segments(length, {128, 320});
  Buffer ids(DType::kI32, {1, length}, std::vector<double>(segments.begin(), segments.end()));
  const Shape shape = {length, 1, width};
  const ScratchContext context(
      AttentionScratch(1, length, 1, 1, width, DType::kBF16, testing::TestedDevice()->attention()),
      EmulatedDevice());
  const double nan = std::numeric_limits<double>::quiet_NaN();
  struct Case {
    int first, end, nan_first, nan_end;  // queries that do not meet the keys
    bool both = true;                    // nor, as keys, the latter as queries
  };
  for (const Case& c : {Case{128, length, 0, 128}, Case{384, length, 128, 320},
                        Case{0, 128, 128, length}, Case{128, 256, 256, length, false}}) {
    std::vector<Buffer> t;
    for (int i = 0; i < 8; ++i) {
      t.emplace_back(DType::kBF16, shape, Buffer::Start::kAligned);
      FillNormal(t.back(), static_cast<uint64_t>(i + 1), 1);
    }
    Buffer &q = t[0], &k = t[1], &v = t[2], &dout = t[3], &o = t[4], &dq = t[5], &dk = t[6],
           &dv = t[7];
    Buffer lse(DType::kF32, {1, 1, length});
    const auto poison = [&](Buffer& x, int from, int to) {
      for (int64_t i = int64_t{from} * width; i < int64_t{to} * width; ++i) x.Set(i, nan);
    };
    const auto expect_finite = [&](const char* name, const Buffer& x, int from, int to) {
      for (int64_t i = int64_t{from} * width; i < int64_t{to} * width; ++i)
        ASSERT_TRUE(std::isfinite(x.Get(i))) << name << " at position " << i / width;
    };
    const auto backward = [&] {
      AttentionBackward(
          *context, {dout.tensor(), q.tensor(), k.tensor(), v.tensor(), ids.tensor(), o.tensor(),
                     lse.tensor(), dq.tensor(), dk.tensor(), dv.tensor(), 0.125});
    };
    poison(v, c.nan_first, c.nan_end);
    AttentionForward(*context, {q.tensor(), k.tensor(), v.tensor(), ids.tensor(), o.tensor(),
                                lse.tensor(), 0.125});
    expect_finite("o", o, c.first, c.end);
    FillNormal(v, 3, 1);
    FillNormal(o, 5, 1);
    poison(k, c.nan_first, c.nan_end);
    backward();
    expect_finite("dq", dq, c.first, c.end);
    if (!c.both) continue;
    // The other way round: keys that these queries attend to, and queries that they do not meet.
    FillNormal(k, 2, 1);
    poison(dout, c.nan_first, c.nan_end);
    backward();
    expect_finite("dk", dk, c.first, c.end);
    expect_finite("dv", dv, c.first, c.end);
  }
}

}  // namespace
}  // namespace overtok
