// In which order a run reads the windows of its corpus: a pure function of (options, windows,
// sequence number), so that resuming needs no state but the number of sequences already read.
// Source of the linear order: docs/data.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/status.h"

namespace overtok {

struct OrderOptions {
  enum class Type { kLinear, kFeistel, kSequential };
  Type type = Type::kLinear;
  uint64_t seed = 42;
  int64_t block = 2048;         // linear: positions are permuted inside blocks of min(block, N)
  bool reshuffle = false;       // another permutation in every pass; false: the same one again
  std::optional<int64_t> a, b;  // linear: pins pi(i) = (a i + b) mod N; a coprime to N
};

class Order {
 public:
  // `windows`: N, windows in the corpus. `prefix`: only the first `prefix` indices of the permuted
  // order are used, and the run wraps there (0: all N). Errors: N = 0, a not coprime to N, prefix >
  // N, options without effect (a or b with another type than linear, reshuffle with sequential).
  static absl::StatusOr<Order> Create(const OrderOptions& options, int64_t windows, int64_t prefix);

  int64_t windows() const { return windows_; }
  int64_t length() const { return length_; }  // sequences in one pass: prefix, or N
  int64_t a() const { return a_; }
  int64_t b() const { return b_; }
  // The window that sequence number `s` (0, 1, ...) of the run reads, and the pass it belongs to
  // (from 0).
  int64_t Window(int64_t s) const;
  int64_t Pass(int64_t s) const;
  // The pass that a step is counted to whose first sequence is `s`: it never falls from step to
  // step, where Pass does so around a border that lies inside a block of permuted positions.
  int64_t StepPass(int64_t s) const { return s / length_; }

 private:
  struct Place {
    int64_t pass;
    int64_t index;  // in the order of windows, before the permutation pi
  };
  Place PlaceOf(int64_t s) const;

  OrderOptions options_;
  int64_t windows_ = 0, length_ = 0, block_ = 1, a_ = 1, b_ = 0;
};

// pi(i) = (a i + b) mod n, exact for any n < 2^62.
int64_t LinearPermutation(int64_t a, int64_t b, int64_t n, int64_t i);

}  // namespace overtok
