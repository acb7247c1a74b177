// Counts, places and moves of a stable radix sort (core/cuda/radix_sort.h).
//
// A tile is 256 threads times eight words. Each of its eight warps owns 256 words in a row and goes
// through them 32 at a time, so that what lies earlier in memory is placed earlier. Words of equal
// digit within 32 find each other by ballots, one for each bit; their order is the lanes'. A digit
// of a tile comes eight times on average: runs of 64 bytes are written. About 1 us each for the
// launches, 25 us a pass for 2^20 words at 4 TB/s with half of it lost to short runs.
#include <utility>

#include "core/cuda/radix_sort.h"

namespace overtok::OT_BACKEND {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kRounds = static_cast<int>(kSortTile) / kThreads;
static_assert(kThreads == kSortDigits, "one thread for each digit");

__device__ __forceinline__ unsigned DigitOf(uint64_t word, int shift) {
  return static_cast<unsigned>(word >> shift) % kSortDigits;
}

// counts[digit][tile]: how often the digit comes in the tile.
__global__ void __launch_bounds__(kThreads)
    CountKernel(const uint64_t* words, int64_t n, int shift, unsigned* counts) {
  Shared shared;
  auto* count = shared.Take<unsigned>(kSortDigits);
  count[threadIdx.x] = 0;
  SyncThreads();
  for (int round = 0; round < kRounds; ++round) {
    const int64_t at = int64_t{blockIdx.x} * kSortTile + round * kThreads + threadIdx.x;
    if (at < n) AtomicAdd(&count[DigitOf(words[at], shift)], 1U);
  }
  SyncThreads();
  counts[int64_t{threadIdx.x} * gridDim.x + blockIdx.x] = count[threadIdx.x];
}

// Sum of the values of the lanes up to this one.
__device__ __forceinline__ unsigned WarpPrefix(unsigned value) {
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const unsigned below = ShuffleUp(value, distance);
    if (Lane() >= distance) value += below;
  }
  return value;
}
// Sum of the values of the threads before this one; `room`: shared, kWarps elements.
__device__ __forceinline__ unsigned BlockPrefix(unsigned value, unsigned* room) {
  const unsigned prefix = WarpPrefix(value);
  if (Lane() == kWarp - 1) room[WarpIndex()] = prefix;
  SyncThreads();
  unsigned before = 0;
  for (int w = 0; w < WarpIndex(); ++w) before += room[w];
  return before + prefix - value;
}

// A warp for each digit: its counts become the number of its words in earlier tiles; totals[digit]
// is the number in all.
__global__ void __launch_bounds__(kThreads)
    PlaceKernel(unsigned* counts, int64_t tiles, unsigned* totals) {
  const int64_t digit = int64_t{blockIdx.x} * kWarps + WarpIndex();
  unsigned* of_digit = counts + digit * tiles;
  unsigned before = 0;
  for (int64_t first = 0; first < tiles; first += kWarp) {
    const int64_t tile = first + Lane();
    const unsigned count = tile < tiles ? of_digit[tile] : 0;
    const unsigned prefix = WarpPrefix(count);
    if (tile < tiles) of_digit[tile] = before + prefix - count;
    before += Shuffle(prefix, kWarp - 1);
  }
  if (Lane() == 0) totals[digit] = before;
}

// Bit l: whether lane l's digit is this lane's; lanes without a word (all ones) are told apart by
// the ninth bit.
__device__ __forceinline__ unsigned LanesLikeThis(unsigned digit) {
  unsigned same = kAllLanes;
  for (int bit = 0; bit < 9; ++bit) {
    const bool set = (digit >> bit & 1U) != 0;
    const unsigned with = VoteBallot(set);
    same &= set ? with : ~with;
  }
  return same;
}

__global__ void __launch_bounds__(kThreads, 4)
    MoveKernel(const uint64_t* words, int64_t n, int shift, const unsigned* counts,
               const unsigned* totals, uint64_t* moved) {
  Shared shared;
  auto* room = shared.Take<unsigned>(kWarps);
  auto* next = shared.Take<unsigned>(kWarps * kSortDigits);  // [warp][digit]
  for (int w = 0; w < kWarps; ++w) next[w * kSortDigits + static_cast<int>(threadIdx.x)] = 0;
  SyncThreads();

  // How often each digit comes in each warp's words.
  unsigned* mine = next + WarpIndex() * kSortDigits;
  const int64_t begin = int64_t{blockIdx.x} * kSortTile + WarpIndex() * (kRounds * kWarp) + Lane();
  uint64_t word[kRounds];
  for (int round = 0; round < kRounds; ++round) {
    const int64_t at = begin + round * kWarp;
    word[round] = at < n ? words[at] : 0;
    if (at < n) AtomicAdd(&mine[DigitOf(word[round], shift)], 1U);
  }

  // The place of each warp's first word of this thread's digit.
  const int digit_here = static_cast<int>(threadIdx.x);
  unsigned place =
      BlockPrefix(totals[digit_here], room) + counts[int64_t{threadIdx.x} * gridDim.x + blockIdx.x];
  for (int w = 0; w < kWarps; ++w) {
    unsigned* of_warp = next + w * kSortDigits + digit_here;
    const unsigned count = *of_warp;
    *of_warp = place;
    place += count;
  }
  SyncThreads();

  for (int round = 0; round < kRounds; ++round) {
    const bool there = begin + round * kWarp < n;
    const unsigned digit = there ? DigitOf(word[round], shift) : 2 * kSortDigits - 1;
    const unsigned same = LanesLikeThis(digit);
    const int rank = CountBits(same & ((1U << Lane()) - 1));
    const unsigned first = there ? mine[digit] : 0;
    if (there) moved[int64_t{first} + rank] = word[round];
    SyncWarp();  // all have read before the first of the equals moves the place on
    if (there && rank == 0) mine[digit] = first + static_cast<unsigned>(CountBits(same));
    SyncWarp();
  }
}

}  // namespace

const uint64_t* RadixSort(const Context& context, uint64_t* a, uint64_t* b, unsigned* counts,
                          int64_t n, uint32_t largest) {
  OT_CHECK_LT(n, int64_t{1} << 32);
  if (n == 0) return a;
  const int64_t tiles = CeilDiv(n, kSortTile);
  unsigned* totals = counts + tiles * kSortDigits;
  for (int shift = 32; shift < 64 && largest >> (shift - 32) != 0; shift += 8) {
    Launch(
        "RadixSortCount", context,
        {.blocks = tiles, .threads = kThreads, .shared_bytes = SharedBytes<unsigned>(kSortDigits)},
        CountKernel, a, n, shift, counts);
    Launch("RadixSortPlace", context, {.blocks = kSortDigits / kWarps, .threads = kThreads},
           PlaceKernel, counts, tiles, totals);
    Launch("RadixSortMove", context,
           {.blocks = tiles,
            .threads = kThreads,
            .shared_bytes =
                SharedBytes<unsigned>(kWarps) + SharedBytes<unsigned>(kWarps * kSortDigits)},
           MoveKernel, a, n, shift, counts, totals, b);
    std::swap(a, b);
  }
  return a;
}

}  // namespace overtok::OT_BACKEND
