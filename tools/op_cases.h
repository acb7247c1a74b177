// The ops that `overtok bench ops` times, one of every kind in core/ops/kernels.h, at the sizes of
// tools/op_shapes.h.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/context.h"
#include "tools/op_operands.h"
#include "tools/op_shapes.h"

namespace overtok {

// One call of an op on operands that are there. `reset`, where defined, brings back what a call
// needs to find; it is not timed.
struct OpCall {
  std::function<void(const Context&)> run, reset = nullptr;
};

struct OpCase {
  std::string name, storage, shape;
  // Takes the operands and asks for scratch; calls come after Memory::Commit.
  std::function<OpCall(Operands&)> prepare;
};

std::vector<OpCase> OpCases(const OpShapes& shapes);

// Parts of it: activations, lookups and losses; updates; products and attention.
void AddActivationOps(const OpShapes& shapes, DType act, std::vector<OpCase>* cases);
void AddOptimizerOps(const OpShapes& shapes, std::vector<OpCase>* cases);
void AddTableRowOps(const OpShapes& shapes, std::vector<OpCase>* cases);
void AddProducts(const OpShapes& shapes, DType act, std::vector<OpCase>* cases);

}  // namespace overtok
