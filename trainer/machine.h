// What this machine has: memory that a run can take, and what this process has taken.
#pragma once

#include <cstdint>
#include <string>

namespace overtok {

struct AvailableMemory {
  int64_t bytes = -1;  // -1: unknown
  std::string source;  // "MemAvailable" or the control group's file that is tighter
};

// The lesser of the kernel's MemAvailable and what this process's control group (version 1 or 2)
// leaves; pages of the file cache count as free in both.
AvailableMemory FindAvailableMemory();

// Most memory this process has held so far, bytes.
int64_t PeakMemory();

}  // namespace overtok
