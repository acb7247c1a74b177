// The emulated device: the CUDA backend's kernels, run by the emulator on memory that only they and
// transfers touch. What a run does on it, launch by launch, is what it does on a GPU; products are
// the CPU backend's, with the same operands and accumulation in f32.
#pragma once

#include "core/device.h"

namespace overtok {

// There once in a program.
Device* EmulatedDevice();

}  // namespace overtok
