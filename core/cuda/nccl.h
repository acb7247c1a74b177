// Ranks on GPUs, one each, talking through NCCL (docs/parallel.md). Messages, all-gathers and
// broadcasts whose tensors lie on the device go from device to device on a stream beside compute's:
// starting one waits on no op, and waiting for it makes compute wait, not the host. Everything in
// host memory (flags, norms, ids, texts, barriers) goes over the communicator beneath, MPI's, which
// starts NCCL and stays the control plane. Needs nothing of CUDA to include.
#pragma once

#include <memory>

#include "core/comm/communicator.h"
#include "core/device.h"
#include "core/status.h"

namespace overtok {

// Whether NcclWorld was compiled in: CUDA's toolkit and NCCL's header were found.
bool HaveNccl();

// Collective. The world of `bootstrap` over NCCL; takes `bootstrap` only where it succeeds. Called
// by the thread that will call every collective, whose current CUDA device is `device`'s; `device`
// outlives the world. Both sides of a message lie on the device, or both on the host. Sums stay
// what they are elsewhere, an exchange and a sum in the order of ranks, so they have the same bits.
// Several ranks cannot share a GPU: core/comm/staged.h lets them.
//
// Errors, the same on all ranks: built without CUDA or NCCL's header; the library is not found, too
// old or of different versions; two ranks on one GPU. A peer that is lost later, a failing call,
// and ranks that wait for a peer for NcclLimits (core/cuda/nccl_watch.h) end the job with the
// reason.
absl::StatusOr<std::unique_ptr<Communicator>> NcclWorld(std::unique_ptr<Communicator>* bootstrap,
                                                        Device* device);

}  // namespace overtok
