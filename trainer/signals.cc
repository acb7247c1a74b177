#include "trainer/signals.h"

#include <csignal>
#include <cstdlib>

namespace overtok {
namespace {

constexpr int kSignals[] = {SIGTERM, SIGINT, SIGUSR1};
constexpr int kCount = 3;

volatile std::sig_atomic_t received_signal = 0;
struct sigaction previous[kCount];

extern "C" void Receive(int signal) {
  if (signal == SIGINT && received_signal == SIGINT) _Exit(128 + SIGINT);
  received_signal = signal;
}

}  // namespace

StopSignals::StopSignals() {
  received_signal = 0;
  struct sigaction action {};
  action.sa_handler = Receive;
  action.sa_flags = SA_RESTART;  // a write that is under way goes on
  sigemptyset(&action.sa_mask);
  for (int i = 0; i < kCount; ++i) sigaction(kSignals[i], &action, &previous[i]);
}

StopSignals::~StopSignals() {
  for (int i = 0; i < kCount; ++i) sigaction(kSignals[i], &previous[i], nullptr);
}

int StopSignals::received() const { return received_signal; }

}  // namespace overtok
