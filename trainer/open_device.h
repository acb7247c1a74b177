// The device that a configuration names.
#pragma once

#include "core/device.h"
#include "core/status.h"
#include "trainer/config/config.h"

namespace overtok {

// `local_rank`: of this process among those of its host; cuda takes the GPU of that number. An
// error that says what is missing where there is none.
absl::StatusOr<Device*> OpenDevice(const Config& config, int local_rank);

// A device of that kind that need not be there, for a dry Memory (core/memory.h); aborts when it is
// used.
Device* PlannedDevice(DeviceKind kind);

}  // namespace overtok
