// A rank that talks through NCCL, from its parts: behind the same table a test puts a stand-in of
// the library, and behind the same streams ones without a GPU. What it promises: core/cuda/nccl.h.
#pragma once

#include <memory>

#include "core/comm/communicator.h"
#include "core/cuda/nccl_api.h"
#include "core/cuda/nccl_streams.h"
#include "core/cuda/nccl_watch.h"
#include "core/device.h"

namespace overtok {

// Collective: makes NCCL's communicator of the ranks of `bootstrap`, with an id of its own that its
// rank 0 draws. A failure, or a rank that does not come within limits.call, ends the job.
std::unique_ptr<Communicator> MakeNcclWorld(std::unique_ptr<Communicator> bootstrap, Device* device,
                                            const NcclApi& api,
                                            std::unique_ptr<NcclStreams> streams,
                                            const NcclLimits& limits = {});

}  // namespace overtok
