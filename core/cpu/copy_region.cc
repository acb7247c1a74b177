// Copies between a tensor and a part of it: one memcpy for each stretch that is contiguous in both.
// One thread: it stands beside transfers between ranks, which take longer.
#include <cstring>

#include "core/cpu/kernels.h"

namespace overtok::cpu {

void CopyRegion(const Context& /*context*/, const CopyRegionArgs& args) {
  auto* whole = args.whole.data<float>();
  auto* packed = args.packed.data<float>();
  const bool pack = args.to == CopyRegionArgs::To::kPacked;
  ForEachRun(args.region, [&](int64_t logical, int64_t place, int64_t count) {
    const auto bytes = static_cast<size_t>(count) * sizeof(float);
    if (pack) {
      std::memcpy(packed + place, whole + logical, bytes);
    } else {
      std::memcpy(whole + logical, packed + place, bytes);
    }
  });
}

}  // namespace overtok::cpu
