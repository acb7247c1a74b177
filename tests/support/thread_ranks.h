// Ranks as threads of one process, for tests of what several ranks do together: the communicators
// of core/comm over shared memory. Misuse that a network would hide by luck is found every time:
// received memory is filled with 0xff until Wait, and sent memory that changed before Wait, a
// message that does not match, a rank that left while another waits for it, and 60 s without
// progress abort the program with a message.
#pragma once

#include <functional>

#include "core/comm/communicator.h"

namespace overtok::testing {

// Calls body(world) on n threads, each with one OpenMP thread and its own rank of a world of n, and
// returns when all have. Expectations may fail on any thread; a rank that leaves early, by a failed
// assertion, ends the program once another waits for it.
void RunOnRanks(int n, const std::function<void(Communicator& world)>& body);

}  // namespace overtok::testing
