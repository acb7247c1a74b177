// How often each window of the corpus has been read: distinct windows and the most reads of one.
// Not state: after a resume it is counted again from the order, which is a pure function.
#pragma once

#include <cstdint>
#include <vector>

#include "data/order.h"

namespace overtok {

class SampleCounter {
 public:
  explicit SampleCounter(int64_t windows) : reads_(static_cast<size_t>(windows), 0) {}

  // Counts the run's first `sequences` windows.
  void Replay(const Order& order, int64_t sequences) {
    for (int64_t s = 0; s < sequences; ++s) Add(order.Window(s));
  }
  void Add(int64_t window) {
    uint32_t& reads = reads_[static_cast<size_t>(window)];
    if (reads == 0) ++distinct_;
    ++reads;
    if (reads > most_) most_ = reads;
  }

  const std::vector<uint32_t>& reads() const { return reads_; }  // by window
  int64_t distinct() const { return distinct_; }
  int64_t max_repeats() const { return most_; }

 private:
  std::vector<uint32_t> reads_;  // by window
  int64_t distinct_ = 0;
  uint32_t most_ = 0;
};

}  // namespace overtok
