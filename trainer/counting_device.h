// A device on which nothing is computed: addresses without memory behind them, and kernels that
// count what they would have to do (core/ops/profile.h). The host's part of a step runs on it as it
// does beside a GPU, so that a step of any size is counted on any machine, by the code that takes
// it. What is read from it is zero.
#pragma once

#include "core/device.h"

namespace overtok {

// There once in a program; one count at a time.
Device* CountingDevice();

}  // namespace overtok
