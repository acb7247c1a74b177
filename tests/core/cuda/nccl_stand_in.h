// A stand-in of NCCL's C functions behind the same table, for ranks that are threads of one process
// and tensors on the emulated device. Transfers of a stream run one after the other, each when all
// that have a part in it have come to it; what is received is 0xff until then, and sent memory is
// read at the last moment. Messages that differ in type or count are errors of their communicators;
// misuse (a group that is not closed, a communicator used after it was aborted or destroyed, an id
// used twice, a wrong rank) ends the program with a message. Waiting is real: a rank that does not
// come leaves the others waiting.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/cuda/nccl_api.h"
#include "core/cuda/nccl_streams.h"

namespace overtok::testing {

NcclApi StandInApi();
// Streams whose compute is the emulated device's, which runs ops as they are asked for: following a
// mark therefore holds the thread until it is reached.
std::unique_ptr<NcclStreams> StandInStreams();

enum class NcclFault {
  kNone,
  kError,  // the call returns ncclSystemError
  kHang,   // the call returns success (making a communicator: never), and nothing ever happens
  kDeath,  // the same, and peers are told of it as an asynchronous error
};
// The n-th call (from 0) of this thread among those that make communicators, send, receive and
// gather has the fault, once.
void PlanNcclFault(NcclFault fault, int nth);

struct StandInFacts {
  std::vector<std::string> ids;   // drawn so far
  int live = 0;                   // communicators made and neither destroyed nor aborted
  int gathers = 0, messages = 0;  // transfers done: all-gathers by rank, sends
};
StandInFacts NcclFacts();
void ResetNcclFacts();  // between tests, with no communicator alive

}  // namespace overtok::testing
