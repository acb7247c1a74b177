// The staged communicator over processes that share one device, each with its own emulation of it.
#include <gtest/gtest.h>

#include "core/comm/staged.h"
#include "core/cuda/emulation/device.h"
#include "tests/core/comm/exchange_checks.h"
#include "tests/support/mpi_main.h"

namespace overtok {
namespace {

TEST(StagedOverMpi, TensorsOnTheDevice) {
  const auto world = Staged(testing::World().Divide(0), EmulatedDevice());
  const testing::TensorsOn place(EmulatedDevice());
  testing::CheckUnevenAndEmptyMessages(*world);
  testing::CheckGuardsBesideOneFloat(*world);
  testing::CheckEveryDType(*world);
  testing::CheckOrderOfExchangesInFlight(*world);
  testing::CheckGatherInPlace(*world);
  testing::CheckBroadcasts(*world);
  testing::CheckBytesSent(*world);
  if (world->size() == 4) testing::CheckGroupsOfAMesh(*world);
}

TEST(StagedOverMpi, TensorsInHostMemory) {
  const auto world = Staged(testing::World().Divide(0), EmulatedDevice());
  testing::CheckUnevenAndEmptyMessages(*world);
  testing::CheckSumsAreEqualBits(*world);
  testing::CheckMaximaAndFlags(*world);
  testing::CheckBroadcasts(*world);
  testing::CheckBytesSent(*world);
}

}  // namespace
}  // namespace overtok
