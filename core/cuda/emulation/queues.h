// The two streams of the emulated device. By default whatever is asked for runs at once, as on one
// stream. Under another schedule it waits in a queue for each stream until the host has to see
// results, and the queues then run as far from the order of asking as Order() permits: an order
// that ops need and nobody said becomes wrong values. What was asked for together
// (Device::RunTogether) always waits until all of it is known, and runs as one op of the main
// stream with two queues of its own.
//
// Several OS threads may ask and wait. One at a time runs what waits; ops never ask for others.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/functional/function_ref.h"
#include "core/device.h"

namespace overtok::emulation {

enum class Schedule : uint8_t {
  kInOrder,    // everything at once, in the order of asking
  kSideFirst,  // ops of the side stream as early as permitted
  kMainFirst,  // as late as permitted
};

// While one lives, that is the schedule, of all threads. Otherwise it is what the variable
// OVERTOK_EMULATED_SCHEDULE (in_order, side_first, main_first) said as the program began; in_order
// without it.
class ScopedSchedule {
 public:
  explicit ScopedSchedule(Schedule schedule);
  ~ScopedSchedule();
  ScopedSchedule(const ScopedSchedule&) = delete;
  ScopedSchedule& operator=(const ScopedSchedule&) = delete;

 private:
  Schedule before_;
};

// Whether what this thread asks for now has to wait. If not, it is run at once, by who asks.
bool Delays();
// `work` holds copies of all it needs. Returns its position on the stream, for IsDone and
// RunMainUntil; inside RunTogether a meaningless one.
int64_t Enqueue(StreamName stream, std::function<void()> work);
void OrderQueues(StreamName earlier, StreamName later);

// Runs what the main stream was asked for until now, or until a position of it, and of the side
// stream what the schedule wants before.
void RunMain();
void RunMainUntil(int64_t position);
bool IsDoneOnMain(int64_t position);
void RunAll();

void RunTogether(absl::FunctionRef<void()> work);
// Ends the program where this thread is inside RunTogether: nothing is sent, read, waited for,
// stamped, taken or freed there.
void CheckNotTogether(const char* call);

}  // namespace overtok::emulation
