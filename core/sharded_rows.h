// Where the indices of one part lie in the whole (core/sharding.h), for kernels as well as the
// host.
#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "core/sharding.h"

namespace overtok::internal {

// First index of part `part` among contiguous ranges.
OT_HOST_DEVICE inline int64_t Border(const Sharding& s, int64_t n, int64_t part) {
  const int64_t units = n / s.unit;
  return units * part / s.parts * s.unit;
}

// By how much the blocks of a round are rotated: the finalizer of SplitMix64 (Steele et al. 2014).
OT_HOST_DEVICE inline int64_t Rotation(const Sharding& s, int64_t round) {
  if (s.split != Split::kScattered) return 0;
  uint64_t x = static_cast<uint64_t>(round) + 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return static_cast<int64_t>((x ^ (x >> 31)) % static_cast<uint64_t>(s.parts));
}

OT_HOST_DEVICE inline bool Dealt(const Sharding& s) {
  return s.split == Split::kBlocks || s.split == Split::kScattered;
}

// The block that part `s.part` has of a round.
OT_HOST_DEVICE inline int64_t BlockOfRound(const Sharding& s, int64_t round) {
  return round * s.parts + (s.part - Rotation(s, round) + s.parts) % s.parts;
}

// overtok::GlobalOf.
OT_HOST_DEVICE inline int64_t GlobalIndex(const Sharding& s, int64_t n, int64_t local) {
  if (s.split == Split::kWhole) return local;
  if (Dealt(s)) return BlockOfRound(s, local / kShardBlock) * kShardBlock + local % kShardBlock;
  return Border(s, n, s.part) + local;
}

}  // namespace overtok::internal
