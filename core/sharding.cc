#include "core/sharding.h"

#include <algorithm>

#include "core/sharded_rows.h"

namespace overtok {

using internal::BlockOfRound;
using internal::Border;
using internal::Dealt;
using internal::Rotation;

int64_t PartOf(const Sharding& s, int64_t n, int64_t i) {
  OT_CHECK(i >= 0 && i < n);
  if (s.split == Split::kWhole) return 0;
  if (Dealt(s)) {
    const int64_t block = i / kShardBlock, round = block / s.parts;
    return (block % s.parts + Rotation(s, round)) % s.parts;
  }
  // The largest part whose border is not above i; the division lands on it or one beside it.
  int64_t part = i / s.unit * s.parts / (n / s.unit);
  while (part + 1 < s.parts && Border(s, n, part + 1) <= i) ++part;
  while (Border(s, n, part) > i) --part;
  return part;
}

int64_t LocalOf(const Sharding& s, int64_t n, int64_t i) {
  OT_CHECK(i >= 0 && i < n);
  if (s.split == Split::kWhole) return i;
  if (Dealt(s)) return i / kShardBlock / s.parts * kShardBlock + i % kShardBlock;
  return i - Border(s, n, PartOf(s, n, i));
}

int64_t GlobalOf(const Sharding& s, int64_t n, int64_t local) {
  return internal::GlobalIndex(s, n, local);
}

int64_t SizeOfPart(const Sharding& s, int64_t n) {
  if (s.split == Split::kWhole) return n;
  if (!Dealt(s)) return Border(s, n, s.part + 1) - Border(s, n, s.part);
  const int64_t blocks = (n + kShardBlock - 1) / kShardBlock, rounds = blocks / s.parts;
  int64_t size = rounds * kShardBlock;
  // The last round may lack blocks, and the last block rows.
  const int64_t last = BlockOfRound(s, rounds);
  if (last < blocks) size += kShardBlock;
  const int64_t final_block = blocks - 1, short_by = blocks * kShardBlock - n;
  if (n > 0 && PartOf(s, n, final_block * kShardBlock) == s.part) size -= short_by;
  return size;
}

int64_t LargestPart(const Sharding& s, int64_t n) {
  int64_t largest = 0;
  Sharding of = s;
  for (of.part = 0; of.part < s.parts; ++of.part) largest = std::max(largest, SizeOfPart(of, n));
  return largest;
}

int64_t PlaceOf(const Sharding& s, int64_t n, int64_t i) {
  if (s.split == Split::kWhole) return LocalOf(s, n, i);
  return PartOf(s, n, i) == s.part ? LocalOf(s, n, i) : -1;
}

int64_t DividedSize(const Sharding& s, const Shape& logical) {
  if (s.split == Split::kColumns) {
    OT_CHECK_EQ(logical.rank(), 2);
    return logical[1];
  }
  return logical[0];
}

Shape LocalShape(const Sharding& s, const Shape& logical) {
  if (s.split == Split::kWhole) return logical;
  const int64_t n = DividedSize(s, logical), size = SizeOfPart(s, n);
  OT_CHECK_EQ(n % s.unit, 0);
  if (s.split == Split::kColumns) return {logical[0], size};
  switch (logical.rank()) {
    case 1:
      return {size};
    case 2:
      return {size, logical[1]};
    default:
      OT_CHECK(logical.rank() <= 2) << "only vectors and matrices are divided";
  }
  return logical;
}

Region Region::Part(const Shape& logical, const Sharding& sharding) {
  return {logical, sharding, 0, LocalShape(sharding, logical).elements()};
}

internal::RunAt internal::FindRun(const Region& region, int64_t at) {
  const Sharding& s = region.sharding;
  const int64_t elements = region.logical.elements();
  if (s.split == Split::kWhole) return {at, elements - at};
  const int64_t n = DividedSize(s, region.logical), size = SizeOfPart(s, n);
  if (s.split == Split::kColumns) {
    const int64_t row = at / size, column = at % size;
    return {row * n + GlobalOf(s, n, column), size - column};
  }
  const int64_t width = elements / n, row = at / width, rest = at % width;
  const int64_t global = GlobalOf(s, n, row);
  const int64_t rows = Dealt(s) ? kShardBlock - row % kShardBlock : size - row;
  return {global * width + rest, rows * width - rest};
}

}  // namespace overtok
