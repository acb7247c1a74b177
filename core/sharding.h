// How a logical tensor is divided into parts, one rank's part each, and where an element lies. One
// set of functions serves lookup, heads, initial values, checkpoints, traces and import. Parts need
// not be of equal size and may be empty: nothing is ever padded (docs/parallel.md).
#pragma once

#include <cstdint>
#include <string>

#include "core/tensor.h"

namespace overtok {

enum class Split : uint8_t {
  kWhole,      // one part: all of it
  kRows,       // dimension 0 in contiguous ranges
  kColumns,    // dimension 1 in contiguous ranges
  kBlocks,     // dimension 0 in blocks of 64 rows, dealt round: block b to part b mod parts
  kScattered,  // the same, each round rotated by a hash of its number, so that no period of the row
               // numbers favours a part
};
inline constexpr int64_t kShardBlock = 64;

// One part of a tensor. Letters: n, the size of the divided dimension.
struct Sharding {
  Split split = Split::kWhole;
  int64_t parts = 1, part = 0;
  // Of kRows and kColumns: borders lie at multiples of it (rows of an attention head); divides n.
  int64_t unit = 1;
  bool operator==(const Sharding&) const = default;
};

// Which part holds index i of the divided dimension (of size n), at which place in that part; the
// index at a place of a part; the size of a part. 0 <= i < n. kWhole: part 0, the index itself.
int64_t PartOf(const Sharding& sharding, int64_t n, int64_t i);
int64_t LocalOf(const Sharding& sharding, int64_t n, int64_t i);
int64_t GlobalOf(const Sharding& sharding, int64_t n, int64_t local);  // of sharding.part
int64_t SizeOfPart(const Sharding& sharding, int64_t n);               // of sharding.part
// LocalOf where sharding.part holds i, else -1.
int64_t PlaceOf(const Sharding& sharding, int64_t n, int64_t i);
int64_t LargestPart(const Sharding& sharding, int64_t n);  // of all parts

// Size of the divided dimension of `logical`, and the shape of the part. kColumns needs rank 2.
int64_t DividedSize(const Sharding& sharding, const Shape& logical);
Shape LocalShape(const Sharding& sharding, const Shape& logical);

// A contiguous buffer that holds elements [begin, begin + count) (row-major) of a part.
struct Region {
  Shape logical;
  Sharding sharding;
  int64_t begin = 0, count = 0;
  static Region Part(const Shape& logical, const Sharding& sharding);  // the whole part
};

// A tensor that a rank holds, and which elements of which logical tensor it is: what checkpoints,
// traces and the optimizer's state are lists of.
struct ShardedTensor {
  std::string name;  // "adamh.m/lm_head.weight"
  Region region;
  Tensor tensor;  // region.count elements
};

// The longest stretches of the region that are contiguous in the logical tensor too, ascending in
// both: calls visit(logical_begin, place_in_the_buffer, count) with row-major element numbers.
template <class Visit>
void ForEachRun(const Region& region, const Visit& visit);

namespace internal {
// The run that begins at element `at` of the part: its logical element and its length.
struct RunAt {
  int64_t logical, count;
};
RunAt FindRun(const Region& region, int64_t at);
}  // namespace internal

template <class Visit>
void ForEachRun(const Region& region, const Visit& visit) {
  const int64_t end = region.begin + region.count;
  for (int64_t at = region.begin; at < end;) {
    const internal::RunAt run = internal::FindRun(region, at);
    const int64_t count = run.count < end - at ? run.count : end - at;
    visit(run.logical, at - region.begin, count);
    at += count;
  }
}

}  // namespace overtok
