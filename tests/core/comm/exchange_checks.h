// What every communicator has to do, whatever carries its messages: called with a world of any size
// by the tests over threads and by those over processes, with tensors in host memory or on a
// device.
#pragma once

#include "core/comm/communicator.h"
#include "core/device.h"

namespace overtok::testing {

// While one lives, tensors of this thread's checks lie on `device`; elsewhere in host memory.
class TensorsOn {
 public:
  explicit TensorsOn(Device* device);
  ~TensorsOn();
  TensorsOn(const TensorsOn&) = delete;
  TensorsOn& operator=(const TensorsOn&) = delete;
};

void CheckUnevenAndEmptyMessages(Communicator& world);
void CheckGuardsBesideOneFloat(Communicator& world);
void CheckEveryDType(Communicator& world);
void CheckOrderOfExchangesInFlight(Communicator& world);
void CheckGatherInPlace(Communicator& world);
void CheckSumsAreEqualBits(Communicator& world);
void CheckMaximaAndFlags(Communicator& world);
void CheckBroadcasts(Communicator& world);
void CheckGroupsOfAMesh(Communicator& world);  // of 4 ranks
void CheckBytesSent(Communicator& world);

}  // namespace overtok::testing
