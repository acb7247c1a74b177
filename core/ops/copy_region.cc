#include "core/ops/copy_region.h"

#include "core/ops/check_args.h"

namespace overtok {

void CopyRegion(const Context& context, const CopyRegionArgs& args) {
  const Region& region = args.region;
  OT_CHECK_DTYPE(args.whole, DType::kF32);
  OT_CHECK_DTYPE(args.packed, DType::kF32);
  OT_CHECK_EQ(args.whole.elements(), region.logical.elements());
  OT_CHECK_EQ(args.packed.elements(), region.count);
  OT_CHECK(region.begin >= 0 &&
           region.begin + region.count <= LocalShape(region.sharding, region.logical).elements())
      << "a region of " << region.count << " elements from " << region.begin
      << " on leaves its part of " << region.logical.ToString();
  OT_CHECK_APART(args.whole, args.packed);
  if (region.count == 0) return;
  internal::Call(context.kernels().copy_region, "copy of a region", context, args);
}

}  // namespace overtok
