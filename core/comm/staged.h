// A communicator whose messages, all-gathers and broadcasts may lie on a device: what a device
// tensor holds is read into host memory when its transfer starts and sent to its place on the
// device when the transfer is waited for; the communicator beneath carries host memory. Bits and
// byte counts are the ones of the communicator beneath. Ranks may share a device.
#pragma once

#include <memory>

#include "core/comm/communicator.h"
#include "core/device.h"

namespace overtok {

// `device` must outlive the communicator and the groups divided from it; of a device without memory
// of its own, `host` itself. Starting a transfer waits for the ops before it that wrote what it
// sends. Host memory for staging is kept between transfers: it grows in the first step, while as
// many transfers of such sizes are in flight for the first time, and not after.
std::unique_ptr<Communicator> Staged(std::unique_ptr<Communicator> host, Device* device);

}  // namespace overtok
