// Fills tensors of any layout from a checkpoint of any other: each rank reads the bytes of its own
// regions, and the checksum of every piece is compared once, by one of the ranks.
#pragma once

#include <string>
#include <vector>

#include "core/comm/communicator.h"
#include "core/sharding.h"
#include "core/status.h"
#include "trainer/checkpoint_layout.h"

namespace overtok {

// Which rank of `ranks` compares the checksums of each piece, [file][piece]. Where files are as
// many as ranks, rank i has file i: what it has written itself it reads anyway.
std::vector<std::vector<int>> Verifiers(const CheckpointLayout& layout, int ranks);

// Collective; the same status on all ranks. `wanted` may differ between ranks, overlap, and be
// empty. Before a byte is read: each tensor is in the checkpoint with its logical shape and dtype,
// and with `all` the checkpoint has no tensor of `kind` that no rank wants.
absl::Status LoadTensors(Communicator& world, const std::string& directory,
                         const CheckpointLayout& layout, CheckpointKind kind,
                         const std::vector<ShardedTensor>& wanted, bool all);

}  // namespace overtok
