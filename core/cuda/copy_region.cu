// Copies between a tensor and a part of it (core/ops/copy_region.h): every thread moves one pack of
// the part's elements, 16 bytes where rows, borders and addresses are multiples of that, and finds
// its row by one division.
// Bytes for n elements: 8 n; no operation counts.
#include "core/cuda/kernels.h"
#include "core/sharded_rows.h"

namespace overtok::OT_BACKEND {
namespace {

constexpr int kThreads = 256;

// Where elements of a part lie in the whole.
struct Places {
  Sharding sharding;
  bool columns;
  int64_t divided;  // size of the divided dimension
  int64_t width;    // of the part's rows
  int64_t first;    // columns: the part's first one
  int64_t begin;    // the region's first element in the part
};

__device__ __forceinline__ int64_t LogicalOf(const Places& places, int64_t at) {
  const int64_t row = at / places.width, rest = at - row * places.width;
  if (places.columns) return row * places.divided + places.first + rest;
  return overtok::internal::GlobalIndex(places.sharding, places.divided, row) * places.width + rest;
}

// Thread i of the grid moves elements [N i, N (i + 1)) of the n; n, and what `places` has of rows
// and borders, are multiples of N.
template <int N, bool kPack>
__global__ void CopyRegionKernel(float* whole, float* packed, int64_t n, const Places places) {
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  if (at >= n) return;
  float* const logical = whole + LogicalOf(places, places.begin + at);
  if (kPack) {
    StorePack<N>(packed + at, LoadPack<N>(logical));
  } else {
    StorePack<N>(logical, LoadPack<N>(packed + at));
  }
}

template <int N>
void Run(const Context& context, const CopyRegionArgs& args, const Places& places) {
  const int64_t n = args.region.count;
  const LaunchShape shape = {.blocks = CeilDiv(n, int64_t{kThreads} * N), .threads = kThreads};
  auto* whole = args.whole.data<float>();
  auto* packed = args.packed.data<float>();
  if (args.to == CopyRegionArgs::To::kPacked) {
    Launch("CopyRegion", context, shape, CopyRegionKernel<N, true>, whole, packed, n, places);
  } else {
    Launch("CopyRegion", context, shape, CopyRegionKernel<N, false>, whole, packed, n, places);
  }
}

Places PlacesOf(const Region& region) {
  const Sharding& sharding = region.sharding;
  Places places = {};
  places.sharding = sharding;
  places.columns = sharding.split == Split::kColumns;
  places.divided = DividedSize(sharding, region.logical);
  places.begin = region.begin;
  if (places.columns) {
    places.width = SizeOfPart(sharding, places.divided);
    places.first = GlobalOf(sharding, places.divided, 0);
  } else {
    places.width = region.logical.elements() / places.divided;
  }
  return places;
}

}  // namespace

void CopyRegion(const Context& context, const CopyRegionArgs& args) {
  constexpr int kPack = 4;
  const Places places = PlacesOf(args.region);
  const auto fits = [](int64_t size) { return size % kPack == 0; };
  if (fits(places.width) && fits(places.begin) &&
      (!places.columns || (fits(places.divided) && fits(places.first))) &&
      FitsPacks<kPack>(args.packed.data<float>(), args.region.count) &&
      FitsPacks<kPack>(args.whole.data<float>(), places.width)) {
    Run<kPack>(context, args, places);
  } else {
    Run<1>(context, args, places);
  }
}

}  // namespace overtok::OT_BACKEND
