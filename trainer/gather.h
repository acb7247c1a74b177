// Whole logical tensors from what ranks hold of them, at rank 0: for traces, which are of small
// models. Nothing else in the program ever holds a tensor that is divided.
#pragma once

#include <vector>

#include "core/comm/communicator.h"
#include "core/sharding.h"

namespace overtok {

// Collective. `mine`: this rank's regions of one logical tensor, all of one dtype; all ranks'
// together hold every element, and where several hold one, any of them counts. On rank 0 `logical`
// (f32, of the tensor's size) is filled; other ranks pass an undefined one.
void GatherTensor(Communicator& world, const std::vector<ShardedTensor>& mine,
                  const Tensor& logical);

}  // namespace overtok
