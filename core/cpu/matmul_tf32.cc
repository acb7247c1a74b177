// Operands of products rounded to TF32: one pass, 8 bytes an element.
#include "core/cpu/kernels.h"
#include "core/cpu/parallel.h"
#include "core/cpu/storage.h"
#include "core/tf32.h"

namespace overtok::cpu {

void RoundToTF32(const Context& /*context*/, const RoundToTF32Args& args) {
  const float* const x = args.x.data<float>();
  float* const y = args.y.data<float>();
  ParallelFor(args.x.elements(), kElementGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) y[i] = ToTF32(x[i]);
  });
}

}  // namespace overtok::cpu
