// What every communicator has to do, whatever carries its messages: called with a world of any size
// by the tests over threads and by those over processes.
#pragma once

#include "core/comm/communicator.h"

namespace overtok::testing {

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
