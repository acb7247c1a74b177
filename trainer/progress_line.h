// The console line of a training run, and the rates it shows.
#pragma once

#include <cstdint>
#include <string>

namespace overtok {

struct ProgressFacts {
  int64_t step = 0, steps = 0;  // completed, of all
  double loss = 0, gradient_norm = 0, lr = 0;
  const char* loss_name = "loss";  // "sampled loss" where it is no cross-entropy over all classes
  double tokens_per_second = -1, step_seconds = -1;  // < 0: not known yet
  int64_t memory_bytes = 0;                          // most held so far
  double waiting = 0;                                // part of the time spent waiting for data
  double epoch = 0;                                  // passes over the data so far
  double seconds_left = -1;                          // < 0: not known yet
};

// step  1200/12000 (10.0%) loss 3.8123 gnorm 0.412 lr 1.2e-03 tok/s 1.05M ms/step 38.2 mem 1.31 GiB
// data 0.4% epoch 0.31 eta 3h12m
std::string FormatProgress(const ProgressFacts& facts);

// The mean time of recent steps. The first step of a process (cold caches, page faults) is left
// out; evaluations and saves never enter.
class StepTimer {
 public:
  void Add(double seconds);
  double seconds() const { return mean_; }  // < 0 before the second step

 private:
  int64_t steps_ = 0;
  double mean_ = -1;
};

}  // namespace overtok
