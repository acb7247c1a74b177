#include "core/cuda/emulation/queues.h"

#include <array>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/cuda/emulation/device_memory.h"

namespace overtok::emulation {
namespace {

using Work = std::function<void()>;

size_t IndexOf(StreamName stream) { return static_cast<size_t>(stream); }
StreamName Other(StreamName stream) {
  return stream == StreamName::kMain ? StreamName::kSide : StreamName::kMain;
}

// Two queues. Positions count what a stream was asked for, from 1.
class Queues {
 public:
  using Positions = std::array<int64_t, kStreams>;

  void Add(StreamName stream, Work work) {
    Queue& queue = queues_[IndexOf(stream)];
    queue.items.push_back({std::move(work), 0});
    ++queue.asked;
  }
  void Order(StreamName earlier, StreamName later) {
    if (earlier == later) return;
    Queue& queue = queues_[IndexOf(later)];
    queue.items.push_back({nullptr, queues_[IndexOf(earlier)].asked});
    ++queue.asked;
  }
  // The next op, as `schedule` wants it, with its stream; null when both streams are done up to
  // `until` and the schedule wants nothing more. Finish() says that it has run; no other is taken
  // before.
  Work Take(Schedule schedule, const Positions& until, StreamName* stream) {
    const StreamName first =
        schedule == Schedule::kSideFirst ? StreamName::kSide : StreamName::kMain;
    const bool eager = first == StreamName::kSide && CanRun(first);
    if (!eager && Reached(StreamName::kMain, until) && Reached(StreamName::kSide, until)) {
      return nullptr;
    }
    // The main stream has the preference only as far as it is asked to run.
    const bool prefer = eager || (!Reached(first, until) && CanRun(first));
    *stream = prefer ? first : Other(first);
    OT_CHECK(CanRun(*stream)) << "the streams wait for each other";
    Queue& queue = queues_[IndexOf(*stream)];
    Work work = std::move(queue.items.front().work);
    queue.items.pop_front();
    return work;
  }
  void Finish(StreamName stream) { ++queues_[IndexOf(stream)].done; }

  Positions asked() const { return {queues_[0].asked, queues_[1].asked}; }
  int64_t done(StreamName stream) const { return queues_[IndexOf(stream)].done; }

 private:
  struct Item {
    Work work;            // null: a wait
    int64_t awaited = 0;  // for this position of the other stream
  };
  struct Queue {
    std::deque<Item> items;
    int64_t asked = 0, done = 0;
  };
  bool Reached(StreamName stream, const Positions& until) {
    PassWaits();
    return done(stream) >= until[IndexOf(stream)];
  }
  // Whether an op is at the front.
  bool CanRun(StreamName stream) {
    PassWaits();
    const Queue& queue = queues_[IndexOf(stream)];
    return !queue.items.empty() && queue.items.front().work != nullptr;
  }
  // Of both streams, until none is left that can be passed: a wait may be for one of the other's.
  void PassWaits() {
    for (bool passed = true; passed;) {
      passed = false;
      for (const StreamName stream : {StreamName::kMain, StreamName::kSide}) {
        Queue& queue = queues_[IndexOf(stream)];
        if (queue.items.empty() || queue.items.front().work != nullptr ||
            queue.items.front().awaited > done(Other(stream)))
          continue;
        queue.items.pop_front();
        ++queue.done;
        passed = true;
      }
    }
  }

  std::array<Queue, kStreams> queues_;
};

// What RunTogether was asked for, in the order of asking.
struct Step {
  Work work;  // null: Order(earlier, stream)
  StreamName stream, earlier;
};
using Section = std::vector<Step>;

void RunSection(const Section& section, Schedule schedule) {
  if (schedule == Schedule::kInOrder) {
    for (const Step& step : section)
      if (step.work != nullptr) step.work();
    return;
  }
  Queues queues;
  for (const Step& step : section) {
    if (step.work != nullptr) {
      queues.Add(step.stream, step.work);
    } else {
      queues.Order(step.earlier, step.stream);
    }
  }
  StreamName stream = StreamName::kMain;
  while (const Work work = queues.Take(schedule, queues.asked(), &stream)) {
    work();
    queues.Finish(stream);
  }
}

Schedule ScheduleOfEnvironment() {
  const char* value = std::getenv("OVERTOK_EMULATED_SCHEDULE");
  if (value == nullptr) return Schedule::kInOrder;
  const std::string name = value;
  if (name == "side_first") return Schedule::kSideFirst;
  if (name == "main_first") return Schedule::kMainFirst;
  OT_CHECK(name == "in_order") << "OVERTOK_EMULATED_SCHEDULE is \"" << name
                               << "\", expected in_order, side_first or main_first";
  return Schedule::kInOrder;
}

struct State {
  std::atomic<Schedule> schedule{ScheduleOfEnvironment()};
  std::mutex running;  // held by the thread that runs what waits; taken before `mutex`
  std::mutex mutex;    // of queues
  Queues queues;
};
// Outlives every static object that frees device memory as the program ends.
State& S() {
  static auto* const state = new State;
  return *state;
}

// Of this thread: what is being asked for together; null outside.
thread_local Section* section = nullptr;

void RunUntil(const Queues::Positions& until) {
  State& state = S();
  const std::lock_guard<std::mutex> runs(state.running);
  const DeviceAccess access;
  for (StreamName stream = StreamName::kMain;;) {
    Work work;
    {
      const std::lock_guard<std::mutex> lock(state.mutex);
      work = state.queues.Take(state.schedule, until, &stream);
    }
    if (work == nullptr) return;
    work();
    const std::lock_guard<std::mutex> lock(state.mutex);
    state.queues.Finish(stream);
  }
}

Queues::Positions Asked() {
  const std::lock_guard<std::mutex> lock(S().mutex);
  return S().queues.asked();
}

}  // namespace

ScopedSchedule::ScopedSchedule(Schedule schedule) {
  RunAll();
  before_ = S().schedule.exchange(schedule);
}
ScopedSchedule::~ScopedSchedule() {
  RunAll();
  S().schedule = before_;
}

bool Delays() {
  return section != nullptr || S().schedule.load(std::memory_order_relaxed) != Schedule::kInOrder;
}

int64_t Enqueue(StreamName stream, Work work) {
  if (section != nullptr) {
    section->push_back({std::move(work), stream, stream});
    return 0;
  }
  const std::lock_guard<std::mutex> lock(S().mutex);
  S().queues.Add(stream, std::move(work));
  return S().queues.asked()[IndexOf(stream)];
}

void OrderQueues(StreamName earlier, StreamName later) {
  if (!Delays()) return;
  if (section != nullptr) {
    section->push_back({nullptr, later, earlier});
    return;
  }
  const std::lock_guard<std::mutex> lock(S().mutex);
  S().queues.Order(earlier, later);
}

void RunMain() { RunMainUntil(Asked()[IndexOf(StreamName::kMain)]); }
void RunMainUntil(int64_t position) {
  if (Delays()) RunUntil({position, 0});
}
bool IsDoneOnMain(int64_t position) {
  const std::lock_guard<std::mutex> lock(S().mutex);
  return S().queues.done(StreamName::kMain) >= position;
}
void RunAll() {
  if (Delays()) RunUntil(Asked());
}

void RunTogether(absl::FunctionRef<void()> work) {
  CheckNotTogether("RunTogether");
  auto asked = std::make_shared<Section>();
  section = asked.get();
  work();
  section = nullptr;
  const Schedule schedule = S().schedule;
  if (schedule == Schedule::kInOrder) {
    const DeviceAccess access;
    RunSection(*asked, schedule);
  } else {
    Enqueue(StreamName::kMain, [asked, schedule] { RunSection(*asked, schedule); });
  }
}

void CheckNotTogether(const char* call) {
  OT_CHECK(section == nullptr) << "Device::" << call
                               << " inside RunTogether, whose ops run when all of them are known";
}

}  // namespace overtok::emulation
