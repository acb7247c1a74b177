// The norms that an optimizer left on its device, in host memory.
#pragma once

#include <array>

#include "core/context.h"
#include "optim/optimizer.h"

namespace overtok::testing {

inline GradientNorms ReadNorms(const Context& context, const Optimizer& optimizer) {
  std::array<double, Optimizer::kNorms> norms{};
  context.Read(optimizer.norms(), norms.data());
  return NormsOf(norms);
}

inline double NormOf(OptimizerGroup group, const Context& context, const Optimizer& optimizer) {
  return ReadNorms(context, optimizer).of_group[static_cast<size_t>(group)];
}

}  // namespace overtok::testing
