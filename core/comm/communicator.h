// Communicator: collectives over a group of ranks, typed spans only (never byte counts). Sums run
// over ranks in a fixed order. One rank is the identity; code that trains always goes through this
// interface, so that more ranks change nothing in it.
#pragma once

#include <memory>
#include <span>

#include "core/status.h"

namespace overtok {

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Element-wise sum over ranks, in place, the same bits on every rank.
  virtual absl::Status AllReduceSum(std::span<float> values) = 0;
  virtual absl::Status AllReduceSum(std::span<double> values) = 0;
  // Logical or of a flag: all ranks decide together (stop, skip, save).
  virtual absl::StatusOr<bool> Any(bool flag) = 0;
};

// The communicator of a run of one process.
std::unique_ptr<Communicator> OneRank();

}  // namespace overtok
