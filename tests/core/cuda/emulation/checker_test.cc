// Every kind of fault that the checker looks for, planted in a kernel of its own (faults.cu), and
// what the checker says of it.
#include "core/cuda/emulation/checker.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "core/cuda/emulation/device.h"
#include "core/cuda/emulation/emulator.h"
#include "core/cuda/emulation/known_memory.h"
#include "tests/core/cuda/emulation/faults.h"
#include "tests/core/cuda/emulation/kernel_array.h"
#include "tests/core/ops/op_harness.h"

namespace overtok {
namespace {

using testing::Buffer;
using testing::Fault;
using testing::KernelArray;
using testing::kFaultElements;

// The harness's device, before anything asks for it.
const int device_is_set = setenv("OVERTOK_TEST_DEVICE", "checked", 1);

std::vector<float> Counting() {
  std::vector<float> values(kFaultElements);
  std::iota(values.begin(), values.end(), 0.0F);
  return values;
}

void Plant(Fault fault) {
  KernelArray<float> in("in", Counting()), out("out", kFaultElements);
  if (fault == Fault::kReadsUnwrittenInput) emulation::MarkUnwritten(in.data() + 100, 4);
  testing::RunFault(fault, in.data(), out.data());
}

TEST(Checker, AKernelWithoutFaultPasses) {
  KernelArray<float> in("in", Counting()), out("out", kFaultElements);
  emulation::MarkUnwritten(out.data(), out.bytes());
  testing::RunFault(Fault::kNone, in.data(), out.data());
  for (int64_t i = 0; i < kFaultElements; ++i) ASSERT_TRUE(out[i] == static_cast<float>(i)) << i;
  EXPECT_EQ(emulation::FirstUnwritten(out.data(), out.bytes()), -1);
}

TEST(Checker, LaunchesAreOrderedAmongThemselves) {
  KernelArray<float> a("a", Counting()), b("b", kFaultElements);
  for (int k = 0; k < 3; ++k) {
    testing::RunFault(Fault::kNone, a.data(), b.data());
    testing::RunFault(Fault::kNone, b.data(), a.data());
  }
}

TEST(CheckerDeathTest, RacesInABlock) {
  EXPECT_DEATH(Plant(Fault::kMissingBarrier),
               "SharedFault, block 0, thread 32 reads 4 bytes at shared memory, piece 0 byte 0: "
               "race: thread 0 of the block wrote it, and no barrier stands between|"
               "thread 0 reads 4 bytes at shared memory, piece 0 byte 128: nobody has written it");
  EXPECT_DEATH(Plant(Fault::kMissingBarrierBeforeReuse),
               "at shared memory, piece 0 byte .*race: thread [0-9]+ of the block (wrote|read) it, "
               "and no barrier");
}

TEST(CheckerDeathTest, RacesInAWarpThatOnlyAShuffleHides) {
  EXPECT_DEATH(Plant(Fault::kWarpWithoutSync), "race: thread [0-9]+ of the block wrote it");
  EXPECT_DEATH(Plant(Fault::kLoadMatrixWithoutSync),
               "LoadFault, block 0, thread [0-9]+ .*(race: thread|nobody has written)");
}

TEST(CheckerDeathTest, RacesBetweenBlocks) {
  EXPECT_DEATH(Plant(Fault::kTwoBlocksWrite),
               "GlobalFault, block 1, thread 3 writes 4 bytes at out element 0, byte 0 of 512: "
               "race: thread 3 of block 0 of the launch wrote it");
  EXPECT_DEATH(Plant(Fault::kBlockReadsAnothersResult),
               "block 1, thread 0 reads 4 bytes at out element 0, .*race: thread 0 of block 0 of "
               "the launch wrote it");
  EXPECT_DEATH(Plant(Fault::kBlockWritesWhatOthersRead),
               "block 1, thread 1 writes 4 bytes at out element 1, .*race: another block of the "
               "launch read it");
  EXPECT_DEATH(Plant(Fault::kAtomicAndPlainRead),
               "reads 4 bytes at counter element 0, .*race: another block of the launch changed it "
               "atomically");
}

TEST(CheckerDeathTest, AccessesOutsideTensors) {
  EXPECT_DEATH(Plant(Fault::kReadPastEnd),
               "GlobalFault, block 1, thread 63 reads 4 bytes at address 0x[0-9a-f]+: out of "
               "bounds: 0 bytes past the end of in");
  EXPECT_DEATH(Plant(Fault::kReadBeforeBegin),
               "block 0, thread 0 reads 4 bytes .*out of bounds: 4 bytes before in");
  EXPECT_DEATH(Plant(Fault::kPackOverEnd), "thread 63 reads .*: 0 bytes past the end of in");
  EXPECT_DEATH(Plant(Fault::kMisalignedPack),
               "block 0, thread 0: a pack of 16 bytes at 0x[0-9a-f]+, which is no multiple");
  EXPECT_DEATH(Plant(Fault::kWritePastEnd), "writes 4 bytes .*out of bounds: 0 bytes past .*out");
}

TEST(CheckerDeathTest, AccessesOutsideSharedMemory) {
  EXPECT_DEATH(Plant(Fault::kSharedReadPastEnd),
               "thread 63 reads 4 bytes at shared memory, 0 bytes past the end of piece 0: outside "
               "the pieces");
  EXPECT_DEATH(Plant(Fault::kSharedReadBeforeBegin),
               "thread 0 reads 4 bytes at shared memory, 4 bytes before piece 0: outside");
  EXPECT_DEATH(Plant(Fault::kSharedWritePastEnd),
               "thread 63 writes 4 bytes at shared memory, 0 bytes past the end of piece 0");
  EXPECT_DEATH(Plant(Fault::kTakesTooMuchShared), "takes more shared memory than it was launched");
  EXPECT_DEATH(Plant(Fault::kTakesDifferentPieces), "threads take different pieces");
}

TEST(CheckerDeathTest, MemoryThatIsNotTheKernels) {
  EXPECT_DEATH(Plant(Fault::kReadsHostMemory), "thread 0 reads 4 bytes at address .*out of bounds");
  EXPECT_DEATH(Plant(Fault::kWritesHostMemory), "thread 63 writes 4 bytes at address .*of bounds");
  EXPECT_DEATH(Plant(Fault::kReadsAnothersStack), "local memory of another thread");
}

TEST(CheckerDeathTest, Divergence) {
  EXPECT_DEATH(Plant(Fault::kBarrierInABranch),
               "SharedFault: threads diverge in block 0: 40 threads wait at SyncThreads, thread "
               "[0-9]+ has returned");
  EXPECT_DEATH(Plant(Fault::kShuffleInHalfAWarp),
               "thread 15 is in ShuffleXor, thread [0-9]+ of the same warp is not");
  EXPECT_DEATH(Plant(Fault::kShuffleBesideVote),
               "threads diverge in block 0: thread [0-9]+ is in ShuffleXor, thread [0-9]+");
  EXPECT_DEATH(Plant(Fault::kShuffleInASmallBlock), "ShuffleXor in a warp of 16 threads");
}

TEST(CheckerDeathTest, AsynchronousCopies) {
  EXPECT_DEATH(Plant(Fault::kMissingCopyWait),
               "CopyFault, block 0, thread 0 reads 4 bytes at shared memory, piece 0 byte 0: an "
               "asynchronous copy there has not been waited for");
  EXPECT_DEATH(Plant(Fault::kCopyOverReaders),
               "at shared memory, piece 0 .*race: thread [0-9]+ of the block (wrote|read) it");
  EXPECT_DEATH(Plant(Fault::kCopySourceChanges), "writes 4 bytes at out element .*race: .*read it");
  EXPECT_DEATH(Plant(Fault::kReturnsWithCopies), "a thread returned with copies under way");
}

TEST(CheckerDeathTest, UnwrittenBytes) {
  EXPECT_DEATH(Plant(Fault::kReadsUnwrittenShared),
               "thread 37 reads 4 bytes at shared memory, piece 0 byte 20: nobody has written it");
  EXPECT_DEATH(Plant(Fault::kReadsAnEarlierBlocksShared),
               "block 1, thread 0 reads 4 bytes at shared memory, piece 0 byte 0: nobody has");
  EXPECT_DEATH(Plant(Fault::kReadsUnwrittenInput),
               "block 1, thread 36 reads 4 bytes at in element 100, byte 400 of 512: nobody has");
}

// The op harness: one op whose kernel has the fault.
testing::OpDescription OpWith(Fault fault) {
  return {.name = "planted",
          .operands = {{.name = "x",
                        .shape = {kFaultElements},
                        .fill = [](Buffer& b) { testing::FillUniform(b, 1, 1, 2); }},
                       {.name = "y", .role = testing::Role::kOutput, .shape = {kFaultElements}}},
          .run =
              [fault](const Context&, const std::vector<Tensor>& t) {
                if (t[0].dtype() == DType::kF64) {
                  for (int64_t i = 0; i < kFaultElements; ++i)
                    t[1].data<double>()[i] = t[0].data<double>()[i];
                } else {
                  testing::RunFault(fault, t[0].data<float>(), t[1].data<float>());
                }
              },
          .bf16 = false};
}

// All failures of the harness's checks, in one.
std::string FailuresOf(Fault fault) {
  ::testing::TestPartResultArray results;
  {
    const ::testing::ScopedFakeTestPartResultReporter reporter(
        ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
    testing::CheckOp(OpWith(fault));
  }
  std::string failures;
  for (int i = 0; i < results.size(); ++i) failures += results.GetTestPartResult(i).message();
  return failures;
}

TEST(Harness, PassesAnOpWithoutFault) { EXPECT_EQ(FailuresOf(Fault::kNone), ""); }

TEST(Harness, FindsAnElementThatAnOpDidNotWrite) {
  const std::string failures = FailuresOf(Fault::kLeavesOutTheLast);
  EXPECT_NE(failures.find("did not write this element of y"), std::string::npos) << failures;
  EXPECT_NE(failures.find("127"), std::string::npos) << failures;
}

TEST(Harness, FindsResultsThatDependOnTheOrderOfBlocks) {
  const std::string failures = FailuresOf(Fault::kOrderOfBlocks);
  EXPECT_NE(failures.find("y: 1 and 2 threads differ"), std::string::npos) << failures;
}

TEST(HarnessDeathTest, FindsAnAccessOneElementOutsideABuffer) {
  EXPECT_DEATH(testing::CheckOp(OpWith(Fault::kReadPastEnd)), "0 bytes past the end of x");
  EXPECT_DEATH(testing::CheckOp(OpWith(Fault::kReadBeforeBegin)), "4 bytes before x");
  EXPECT_DEATH(testing::CheckOp(OpWith(Fault::kWritePastEnd)), "0 bytes past the end of y");
}

// Blocks of the device are known to the checker as they are.
TEST(CheckedDeviceDeathTest, TensorsOfTheDeviceHaveBounds) {
  Device* device = CheckedDevice();
  constexpr int64_t kBytes = kFaultElements * 4;
  auto* in = static_cast<float*>(device->Allocate(kBytes, "weights"));
  auto* out = static_cast<float*>(device->Allocate(kBytes, "sums"));
  const std::vector<float> values = Counting();
  const Device::Piece piece = {in, values.data(), kBytes};
  device->Send({&piece, 1}, StreamName::kMain);
  testing::RunFault(Fault::kNone, in, out);
  std::vector<float> back(kFaultElements);
  device->Read({back.data(), out, kBytes});
  EXPECT_EQ(back, values);
  EXPECT_DEATH(testing::RunFault(Fault::kReadPastEnd, in, out), "0 bytes past the end of weights");
  EXPECT_DEATH(testing::RunFault(Fault::kWritePastEnd, in, out), "0 bytes past the end of sums");
  device->Free(in, kBytes);
  device->Free(out, kBytes);
  EXPECT_DEATH(testing::RunFault(Fault::kNone, in, out), "out of bounds");
}

}  // namespace
}  // namespace overtok
