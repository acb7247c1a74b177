// Where a step's time goes: a table of kernels that times another one's, op by op, with the work
// that each call has to do. For measurements only (`overtok bench step --by-op`); a training run
// uses the plain table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/ops/kernels.h"

namespace overtok {

struct OpTime {
  std::string name;  // products carry their shape: "matmul 512x32000x256 nt"
  int64_t calls = 0;
  double seconds = 0;
  bool products =
      false;  // work is floating-point operations; else bytes that have to move at least
  double work = 0;
};

// One profile at a time in a process, from one thread.
const Kernels& StartProfile(const Kernels& kernels);
// Forgets what was counted so far (after warm-up).
void ResetProfile();
// Longest first.
std::vector<OpTime> ReadProfile();

}  // namespace overtok
