// The ops that `overtok bench ops` times, each at the shape that a model of some hundred million
// parameters gives it on one machine: activations that no cache holds.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/context.h"
#include "core/memory.h"

namespace overtok {

// What holds an op back.
enum class Ceiling : uint8_t { kMemory, kF32Products, kBf16Products };

struct OpCase {
  std::string name, storage, shape;
  Ceiling ceiling;
  double work;  // bytes that have to move at least, or floating-point operations
  // Takes the operands and asks for scratch; the call comes after Memory::Commit.
  std::function<std::function<void(const Context&)>(Memory&)> prepare;
};

std::vector<OpCase> OpCases();

}  // namespace overtok
