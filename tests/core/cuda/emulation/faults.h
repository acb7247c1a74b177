// Kernels with one fault each, for the checker to find.
#pragma once

#include <cstdint>

namespace overtok::testing {

enum class Fault : uint8_t {
  kNone,
  // Races.
  kMissingBarrier,
  kMissingBarrierBeforeReuse,
  kWarpWithoutSync,
  kLoadMatrixWithoutSync,
  kTwoBlocksWrite,
  kBlockReadsAnothersResult,
  kBlockWritesWhatOthersRead,
  kAtomicAndPlainRead,
  // Bounds.
  kReadPastEnd,
  kReadBeforeBegin,
  kPackOverEnd,
  kMisalignedPack,
  kWritePastEnd,
  kSharedReadPastEnd,
  kSharedReadBeforeBegin,
  kSharedWritePastEnd,
  kReadsHostMemory,
  kWritesHostMemory,
  kReadsAnothersStack,
  kTakesTooMuchShared,
  kTakesDifferentPieces,
  // Divergence.
  kBarrierInABranch,
  kShuffleInHalfAWarp,
  kShuffleBesideVote,
  kShuffleInASmallBlock,
  // Asynchronous copies.
  kMissingCopyWait,
  kCopyOverReaders,
  kCopySourceChanges,
  kReturnsWithCopies,
  // Unwritten.
  kReadsUnwrittenShared,
  kReadsAnEarlierBlocksShared,
  kReadsUnwrittenInput,
  kLeavesOutTheLast,
  // Results that depend on which block comes first.
  kOrderOfBlocks,
};

// Two blocks of 64 threads (one of 16 for kShuffleInASmallBlock): in and out of 128 elements,
// 16-byte aligned. kNone copies.
inline constexpr int64_t kFaultElements = 128;
void RunFault(Fault fault, const float* in, float* out);

}  // namespace overtok::testing
