// Sums of equal tensors in an order that is part of the contract: how ranks' contributions become
// one tensor.
#pragma once

#include <span>

#include "core/context.h"
#include "core/tensor.h"

namespace overtok {

// out = sum of the parts: f32 (f64), or bf16 (added in f32, rounded once); equal dtype and element
// count. out may be one of the parts.
//   kInOrder  ((p0 + p1) + p2) + ...
//   kTree     the tree of core/gradient_sum.h over the parts as leaves: aligned powers of two, the
//             rest joined from the smallest up; 5 parts: ((p0 + p1) + (p2 + p3)) + p4
struct OrderedSumArgs {
  std::span<const Tensor> parts;
  Tensor out;
  enum class Order : unsigned char { kInOrder, kTree } order = Order::kInOrder;
};
void OrderedSum(const Context& context, const OrderedSumArgs& args);

}  // namespace overtok
