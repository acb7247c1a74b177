// Operands of products rounded to TF32: one pass, 8 bytes an element; no operation counts.
//
// Why a pass of its own: tensor cores take 10 bits of a float's mantissa, but what becomes of the
// other 13 in a product with CUBLAS_COMPUTE_32F_FAST_TF32 NVIDIA does not document. CUTLASS rounds
// before it multiplies or, where operands go from memory straight to the tensor cores, cuts them
// off. Cutting off moves every operand towards zero by up to 2^-10 of it; rounding is off by at
// most 2^-11, to either side, and is what the other devices do. The passes cost little:
// docs/gpu.md.
#include "core/cuda/kernels.h"
#include "core/tf32.h"

namespace overtok::OT_BACKEND {
namespace {

constexpr int kThreads = 256;

// Thread i of the grid rounds elements [N i, N (i + 1)); n is a multiple of N.
template <int N>
__global__ void RoundToTF32Kernel(const float* x, float* y, int64_t n) {
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  if (at >= n) return;
  Pack<float, N> pack = LoadPack<N>(x + at);
  for (int i = 0; i < N; ++i) pack.v[i] = ToTF32(pack.v[i]);
  StorePack<N>(y + at, pack);
}

template <int N>
void RoundBy(const Context& context, const float* x, float* y, int64_t n) {
  const LaunchShape shape = {.blocks = CeilDiv(n, int64_t{kThreads} * N), .threads = kThreads};
  Launch("RoundToTF32", context, shape, RoundToTF32Kernel<N>, x, y, n);
}

}  // namespace

void RoundToTF32(const Context& context, const RoundToTF32Args& args) {
  const int64_t n = args.x.elements();
  const float* const x = args.x.data<float>();
  float* const y = args.y.data<float>();
  if (FitsPacks<4>(x, n) && FitsPacks<4>(y, n)) {
    RoundBy<4>(context, x, y, n);
  } else {
    RoundBy<1>(context, x, y, n);
  }
}

}  // namespace overtok::OT_BACKEND
