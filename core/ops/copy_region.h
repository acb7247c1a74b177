// Copies between a whole tensor and the buffer of a part of it: how a rank that owns a matrix and
// holds only a part of it puts its gradient together and sends its values out.
#pragma once

#include <cstdint>

#include "core/context.h"
#include "core/sharding.h"
#include "core/tensor.h"

namespace overtok {

// packed[i] = whole[logical element of i] (kPacked), or the other way round (kWhole), for the
// region's elements; others of `whole` are neither read nor written. No bit changes.
struct CopyRegionArgs {
  Region region;
  Tensor whole;   // [region.logical] f32
  Tensor packed;  // region.count f32
  enum class To : unsigned char { kPacked, kWhole } to = To::kPacked;
};
void CopyRegion(const Context& context, const CopyRegionArgs& args);

}  // namespace overtok
