#include "core/cuda/emulation/device.h"
#include "core/cuda/emulation/known_memory.h"
#include "core/cuda/kernel.h"
#include "tests/core/cuda/emulation/faults.h"

namespace overtok {
namespace checked {
namespace {

using testing::Fault;

constexpr int kThreads = 64;

// Faults that do without shared memory.
__global__ void GlobalKernel(Fault fault, const float* in, float* out, float* host,
                             unsigned* counter) {
  const int64_t n = testing::kFaultElements;
  const int t = static_cast<int>(threadIdx.x);
  const int64_t i = int64_t{blockIdx.x} * kThreads + t;
  const bool last = i == n - 1;
  switch (fault) {
    case Fault::kTwoBlocksWrite:
      if (t == 3) out[0] = in[i];
      return;
    case Fault::kBlockReadsAnothersResult:
      if (blockIdx.x == 0) out[t] = in[t];
      if (blockIdx.x == 1) out[i] = out[t];
      return;
    case Fault::kBlockWritesWhatOthersRead:
      if (t == 0) out[i] = out[1];
      if (t == 1 && blockIdx.x == 1) out[1] = 2;
      return;
    case Fault::kAtomicAndPlainRead:
      AtomicAdd(counter, 1U);
      if (last) out[i] = static_cast<float>(*counter);
      return;
    case Fault::kReadPastEnd:
      out[i] = in[i + 1];
      return;
    case Fault::kReadBeforeBegin:
      out[i] = in[i - 1];
      return;
    case Fault::kPackOverEnd:
      if (last) StorePack<4>(out + i - 3, LoadPack<4>(in + i - 3 + 4));
      return;
    case Fault::kMisalignedPack:
      if (t == 0) StorePack<4>(out + i, LoadPack<4>(in + i + 1));
      return;
    case Fault::kWritePastEnd:
      out[i + 1] = in[i];
      return;
    case Fault::kReadsHostMemory:
      out[i] = host[0];
      return;
    case Fault::kWritesHostMemory:
      if (last) host[0] = 1;
      return;
    case Fault::kLeavesOutTheLast:
      if (!last) out[i] = in[i];
      return;
    case Fault::kReadsUnwrittenInput:
    default:
      out[i] = in[i];
  }
}

// The first block to come decides; only atomics touch what blocks share.
__global__ void OrderKernel(const float* in, float* out, unsigned* counter) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  out[i] = in[i];
  if (threadIdx.x == 0) out[i] = static_cast<float>(AtomicAdd(counter, 1U));
}

__global__ void SharedKernel(Fault fault, const float* in, float* out) {
  Shared shared;
  const int t = static_cast<int>(threadIdx.x);
  float* a = shared.Take<float>(kThreads);
  float* b = shared.Take<float>(fault == Fault::kTakesTooMuchShared     ? 2 * kThreads
                                : fault == Fault::kTakesDifferentPieces ? kThreads + t / 32
                                                                        : kThreads);
  float** pointers = shared.Take<float*>(kThreads);
  const int64_t i = int64_t{blockIdx.x} * kThreads + t;
  const int other = t ^ 32, neighbour = t ^ 1;
  b[t] = 0;
  switch (fault) {
    case Fault::kMissingBarrier:
      a[t] = in[i];
      out[i] = a[other];
      return;
    case Fault::kMissingBarrierBeforeReuse:
      a[t] = in[i];
      SyncThreads();
      out[i] = a[other];
      a[t] = 0;
      return;
    case Fault::kWarpWithoutSync:
      a[t] = in[i];
      out[i] = ShuffleXor(in[i], 1) + a[neighbour];
      return;
    case Fault::kSharedReadPastEnd:
      a[t] = in[i];
      SyncThreads();
      out[i] = a[t + 1];
      return;
    case Fault::kSharedReadBeforeBegin:
      a[t] = in[i];
      SyncThreads();
      out[i] = a[t - 1];
      return;
    case Fault::kSharedWritePastEnd:
      a[t + 1] = in[i];
      return;
    case Fault::kReadsAnothersStack: {
      float mine[2] = {in[i], 0};
      pointers[t] = mine;
      SyncThreads();
      out[i] = *pointers[other];
      SyncThreads();
      return;
    }
    case Fault::kBarrierInABranch:
      a[t] = in[i];
      if (t < 40) SyncThreads();
      out[i] = a[t];
      return;
    case Fault::kShuffleInHalfAWarp:
      if (t < 16) out[i] = WarpSum(in[i]);
      return;
    case Fault::kShuffleBesideVote:
      if (t < 16) {
        out[i] = ShuffleXor(in[i], 1);
      } else {
        out[i] = static_cast<float>(VoteBallot(true));
      }
      return;
    case Fault::kShuffleInASmallBlock:
      out[i] = WarpSum(in[i]);
      return;
    case Fault::kReadsUnwrittenShared:
      if (t != 5) a[t] = in[i];
      SyncThreads();
      out[i] = a[other];
      return;
    case Fault::kReadsAnEarlierBlocksShared:
      if (blockIdx.x == 0) a[t] = in[i];
      out[i] = a[t];
      return;
    default:
      a[t] = in[i];
      SyncThreads();
      out[i] = a[t];
  }
}

__global__ void CopyKernel(Fault fault, const float* in, float* out, float* more) {
  Shared shared;
  const int t = static_cast<int>(threadIdx.x);
  float* a = shared.Take<float>(kThreads);
  const float* from = in + int64_t{blockIdx.x} * kThreads + 4 * t;
  const int64_t i = int64_t{blockIdx.x} * kThreads + t;
  if (fault == Fault::kCopySourceChanges) from = more + int64_t{blockIdx.x} * kThreads + 4 * t;
  if (t < kThreads / 4) CopyAsync16(a + 4 * t, from);
  CopyAsyncCommit();
  if (fault == Fault::kReturnsWithCopies) return;
  if (fault == Fault::kCopySourceChanges) more[i] = 1;
  if (fault != Fault::kMissingCopyWait) CopyAsyncWait<0>();
  SyncThreads();
  out[i] = a[t];
  if (fault == Fault::kCopyOverReaders && t < kThreads / 4) {
    CopyAsync16(a + 4 * t, from);
    CopyAsyncCommit();
  }
  CopyAsyncWait<0>();
}

// One warp fills a tile and loads it at once.
__global__ void LoadMatrixKernel(const float* in, float* out) {
  Shared shared;
  bf16* tile = shared.Take<bf16>(32 * 8);
  const int lane = Lane();
  for (int c = 0; c < 32; ++c) tile[c * 8 + lane % 8] = FromFloat<bf16>(in[lane]);
  uint32_t tiles[4];
  LoadMatrix4(tiles, tile + 8 * lane);
  out[lane] = static_cast<float>(tiles[0] + tiles[1] + tiles[2] + tiles[3]);
}

}  // namespace
}  // namespace checked

namespace testing {

void RunFault(Fault fault, const float* in, float* out) {
  using namespace checked;  // NOLINT: Launch and what it takes
  const Context context(EmulatedDevice());
  const LaunchShape plain = {.blocks = 2, .threads = kThreads};
  const LaunchShape with_shared = {
      .blocks = 2,
      .threads = kThreads,
      .shared_bytes = 2 * SharedBytes<float>(kThreads) + SharedBytes<float*>(kThreads)};
  unsigned counter = 0;
  float host = 0;
  emulation::AddMemory(&counter, sizeof(counter), "counter", sizeof(counter));
  switch (fault) {
    case Fault::kOrderOfBlocks:
      Launch("Order", context, plain, OrderKernel, in, out, &counter);
      break;
    case Fault::kMissingCopyWait:
    case Fault::kCopyOverReaders:
    case Fault::kCopySourceChanges:
    case Fault::kReturnsWithCopies:
      Launch("CopyFault", context, with_shared, CopyKernel, fault, in, out, out);
      break;
    case Fault::kLoadMatrixWithoutSync:
      Launch("LoadFault", context, {.threads = 32, .shared_bytes = SharedBytes<bf16>(256)},
             LoadMatrixKernel, in, out);
      break;
    case Fault::kShuffleInASmallBlock:
      Launch("SharedFault", context,
             {.blocks = 1, .threads = 16, .shared_bytes = with_shared.shared_bytes}, SharedKernel,
             fault, in, out);
      break;
    case Fault::kMissingBarrier:
    case Fault::kMissingBarrierBeforeReuse:
    case Fault::kWarpWithoutSync:
    case Fault::kSharedReadPastEnd:
    case Fault::kSharedReadBeforeBegin:
    case Fault::kSharedWritePastEnd:
    case Fault::kReadsAnothersStack:
    case Fault::kTakesTooMuchShared:
    case Fault::kTakesDifferentPieces:
    case Fault::kBarrierInABranch:
    case Fault::kShuffleInHalfAWarp:
    case Fault::kShuffleBesideVote:
    case Fault::kReadsUnwrittenShared:
    case Fault::kReadsAnEarlierBlocksShared:
      Launch("SharedFault", context, with_shared, SharedKernel, fault, in, out);
      break;
    default:
      Launch("GlobalFault", context, plain, GlobalKernel, fault, in, out, &host, &counter);
  }
  emulation::RemoveMemory(&counter);
}

}  // namespace testing
}  // namespace overtok
