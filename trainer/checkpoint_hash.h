// A hash of a logical tensor that does not depend on how it is divided: each rank sums over the
// elements it has, and the sums add up (docs/formats/checkpoint.md). Reads every element once.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "core/sharding.h"
#include "core/tensor.h"

namespace overtok {

// The sum over the region's elements of c(p) * e modulo 2^64, where p is the element's number in
// the logical tensor (row-major), e its bits as a number, c(p) an odd factor that looks random.
// Elements of eight bytes count as two of four. Sums of disjoint regions add up, modulo 2^64, to
// that of their union. `tensor`: region.count elements on the host.
uint64_t PositionHash(const Region& region, const Tensor& tensor);

// The hash of a whole tensor from its name, dtype, shape and the sum over all of its elements.
// Those of a set of tensors are added, so that no order matters.
uint64_t TensorHash(absl::string_view name, DType dtype, const Shape& shape, uint64_t sum);

}  // namespace overtok
