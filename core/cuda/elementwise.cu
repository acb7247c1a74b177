// Fill, cast and add: one pass over memory, 16 bytes at a time where the tensors are aligned.
// Bytes: size of the output, of input and output, of three operands; no operation counts.
#include "core/cuda/kernels.h"

namespace overtok::OT_BACKEND {
namespace {

constexpr int kThreads = 256;

// Thread i of the grid handles elements [N i, N (i + 1)); n is a multiple of N.
template <int N, class F>
__device__ __forceinline__ void ForEachPack(int64_t n, const F& f) {
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  if (at < n) f(at);
}

template <int N, class T>
__global__ void FillKernel(T* x, int64_t n, T value) {
  ForEachPack<N>(n, [&](int64_t at) {
    Pack<T, N> pack;
    for (int i = 0; i < N; ++i) pack.v[i] = value;
    StorePack<N>(x + at, pack);
  });
}

template <int N, class From, class To>
__global__ void CastKernel(const From* x, To* y, int64_t n) {
  ForEachPack<N>(n, [&](int64_t at) {
    const Pack<From, N> in = LoadPack<N>(x + at);
    Pack<To, N> out;
    for (int i = 0; i < N; ++i) out.v[i] = FromFloat<To>(ToFloat(in.v[i]));
    StorePack<N>(y + at, out);
  });
}

template <int N, class T>
__global__ void AddKernel(const T* x, T* y, int64_t n) {
  ForEachPack<N>(n, [&](int64_t at) {
    const Pack<T, N> a = LoadPack<N>(x + at);
    Pack<T, N> sum = LoadPack<N>(y + at);
    for (int i = 0; i < N; ++i) sum.v[i] = FromFloat<T>(ToFloat(sum.v[i]) + ToFloat(a.v[i]));
    StorePack<N>(y + at, sum);
  });
}

template <int N>
LaunchShape ShapeFor(int64_t n) {
  return {.blocks = CeilDiv(n, int64_t{kThreads} * N), .threads = kThreads};
}

template <class T>
void FillAs(const Context& context, const Tensor& x, T value) {
  constexpr int kPack = 16 / sizeof(T);
  const int64_t n = x.elements();
  T* data = x.data<T>();
  if (FitsPacks<kPack>(data, n)) {
    Launch("Fill", context, ShapeFor<kPack>(n), FillKernel<kPack, T>, data, n, value);
  } else {
    Launch("Fill", context, ShapeFor<1>(n), FillKernel<1, T>, data, n, value);
  }
}

template <class From, class To>
void CastAs(const Context& context, const CastArgs& args) {
  constexpr int kPack = 16 / (sizeof(From) > sizeof(To) ? sizeof(From) : sizeof(To));
  const int64_t n = args.x.elements();
  const From* x = args.x.data<From>();
  To* y = args.y.data<To>();
  if (FitsPacks<kPack>(x, n) && FitsPacks<kPack>(y, n)) {
    Launch("Cast", context, ShapeFor<kPack>(n), CastKernel<kPack, From, To>, x, y, n);
  } else {
    Launch("Cast", context, ShapeFor<1>(n), CastKernel<1, From, To>, x, y, n);
  }
}

}  // namespace

void Fill(const Context& context, const FillArgs& args) {
  if (args.x.dtype() == DType::kF64) return FillAs<double>(context, args.x, args.value);
  ByActivation(args.x.dtype(), "fill", [&](auto zero) {
    using T = decltype(zero);
    FillAs<T>(context, args.x, FromFloat<T>(static_cast<float>(args.value)));
  });
}

void Cast(const Context& context, const CastArgs& args) {
  ByActivation(args.x.dtype(), "cast", [&](auto from) {
    ByActivation(args.y.dtype(), "cast",
                 [&](auto to) { CastAs<decltype(from), decltype(to)>(context, args); });
  });
}

void Add(const Context& context, const AddArgs& args) {
  ByActivation(args.x.dtype(), "add", [&](auto zero) {
    using T = decltype(zero);
    constexpr int kPack = 16 / sizeof(T);
    const int64_t n = args.x.elements();
    const T* x = args.x.data<T>();
    T* y = args.y.data<T>();
    if (FitsPacks<kPack>(x, n) && FitsPacks<kPack>(y, n)) {
      Launch("Add", context, ShapeFor<kPack>(n), AddKernel<kPack, T>, x, y, n);
    } else {
      Launch("Add", context, ShapeFor<1>(n), AddKernel<1, T>, x, y, n);
    }
  });
}

}  // namespace overtok::OT_BACKEND
