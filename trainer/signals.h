// Signals that ask a run to stop: SIGTERM, SIGINT and SIGUSR1 (what batch systems send ahead of the
// end) set a flag; the run finishes its step, saves and exits with kExitInterrupted.
#pragma once

namespace overtok {

// The exit code of a run that was asked to stop and saved: "temporary failure, start me again".
inline constexpr int kExitInterrupted = 75;

// While it lives, the three signals are caught. A second SIGINT ends the process at once.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();  // restores the handlers that were there
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The number of the signal that came, 0 for none.
  int received() const;
};

}  // namespace overtok
