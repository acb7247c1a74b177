// Where a step's time goes: a table of kernels that times another one's, op by op, with the work
// that each call has to do; or one that does nothing and only counts the work. For measurements and
// predictions alone (`overtok bench`); a training run uses the plain table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/ops/kernels.h"
#include "core/ops/work.h"

namespace overtok {

struct OpTime {
  std::string name;  // products carry their shape: "matmul 512x32000x256 nt"
  int64_t calls = 0;
  double seconds = 0;  // 0 where work was only counted
  Work work;           // of all calls
};

// One profile at a time in a process, from one thread. On a device that runs behind the host every
// op is timed between two waits, so that the times of ops are whole, and their sum is more than the
// step takes without them.
const Kernels& StartProfile(const Kernels& kernels);
// Kernels of all ops that touch nothing and leave their results as they are.
const Kernels& StartCount();
// Forgets what was counted so far (after warm-up).
void ResetProfile();
// Longest first; of counted ones those with most work to move.
std::vector<OpTime> ReadProfile();

}  // namespace overtok
