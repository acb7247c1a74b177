// GradientSum: how the gradients of a step's micro-batches add up on one rank. The sum over a batch
// is one fixed binary tree over its micro-batches, whatever ranks they run on: a rank keeps one
// partial sum for each set bit of the number of micro-batches done (aligned powers of two), and
// ranks' sums are joined by the same tree (optim/gradient_exchange.h). So data-parallel degree and
// accumulation change no bit, as long as each rank runs a power of two of micro-batches. The plain
// sum, in order into one tensor, is an option: less memory, other bits for other layouts.
//
// With m micro-batches a rank holds one tensor per parameter and one more for each doubling of m
// beyond 2 (m = 2: 1, m = 3, 4: 2, m = 8: 3), and one leaf of the largest parameter's size, which
// all parameters share. The plain sum and m = 1 take one tensor per parameter.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "core/context.h"
#include "core/memory.h"
#include "core/parameter.h"

namespace overtok {

enum class GradientOrder : uint8_t {
  kTree,   // bit-equal under any split of the batch
  kPlain,  // in order of micro-batches
};

class GradientSum {
 public:
  // After all parameters are declared. `micro_batches`: of this rank in a step.
  GradientSum(ParameterSet* parameters, int64_t micro_batches, GradientOrder order, Memory* memory);

  // Called for each dense parameter whose gradient on this rank is complete, in the order of the
  // backward pass.
  void OnComplete(std::function<void(Parameter&)> complete) { complete_ = std::move(complete); }

  // Micro-batch `index` (0, 1, ... in a step) begins. Every dense parameter must have had its
  // gradient of the one before.
  void Start(int64_t index);
  // The micro-batch that began is the step's last on this rank.
  bool last() const { return index_ + 1 == micro_batches_; }

  // Where this micro-batch's gradient of a parameter is to be written, and whether something of
  // the same micro-batch (or, in a plain sum, of earlier ones) stands there to be added to. Finish
  // joins it, after the second use where the parameter is used twice.
  struct Leaf {
    Tensor tensor;  // of Parameter::gradient's shape
    bool accumulate = false;
  };
  Leaf Begin(Parameter& parameter);
  // For gradients that are added by rows: zero where nothing stands yet. Of tables: the compact
  // gradient of the touched rows, [touched.count, w].
  Tensor BeginRows(const Context& context, Parameter& parameter);
  void Finish(const Context& context, Parameter& parameter);

 private:
  struct Sums {
    std::vector<Tensor> levels;  // partial sums, the longest first; the first is the gradient
    Tensor leaf;                 // of odd micro-batches
    int64_t depth = 0;           // partial sums that stand
    int64_t finished = 0;        // micro-batches joined
    int uses = 0;                // in this micro-batch
    bool written = false;        // the leaf
  };
  bool plain() const { return order_ == GradientOrder::kPlain; }
  void Join(const Context& context, const Parameter& parameter, Sums& sums);

  int64_t micro_batches_;
  GradientOrder order_;
  int64_t index_ = 0;
  std::unordered_map<const Parameter*, Sums> sums_;
  std::function<void(Parameter&)> complete_;
};

}  // namespace overtok
