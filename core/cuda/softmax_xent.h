// What the softmax kernels share: how a block's threads divide a row, its maximum and its sum of
// exponentials, what a row's loss and gradient are made of, and the gradient's way out.
//
// A block of SoftmaxThreads(V) threads has one row. Thread t owns the columns 4 t + 4 threads k to
// + 3, in all passes and however they are loaded, so that a row's bits depend on its values and its
// length alone: no thread reads what another one writes, also where the gradient takes the logits'
// place. Rows of up to kKeptColumns are read from memory once and kept in shared memory, first the
// logits, then their exponentials. Longer ones are read twice (core/cuda/softmax_xent.cu).
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "core/cuda/kernel.h"

namespace overtok::OT_BACKEND {

// 160 KB of the 163 KB that a block may have.
inline constexpr int kKeptColumns = 40960;
inline constexpr int kQuad = 4;    // columns that move as one
inline constexpr int kFlight = 4;  // quads that a thread loads before it uses the first
inline constexpr int kMostSoftmaxThreads = 1024;

// Threads of a row's block: few for short rows; 512 while two blocks, of 64 registers a thread and
// 112 KB, fit in a multiprocessor of sm_90; one block has all of it otherwise.
inline int SoftmaxThreads(int64_t classes) {
  if (classes <= 2048) return 128;
  if (classes <= 4096) return 256;
  return classes <= 28672 ? 512 : kMostSoftmaxThreads;
}

inline constexpr float kInfinity = HUGE_VALF;
__device__ __forceinline__ bool InQuad(int column, int at) {
  return static_cast<unsigned>(column - at) < static_cast<unsigned>(kQuad);
}

// One row of logits. kPacked: quads are loaded and stored as packs; kBias: a bias is added.
template <bool kPacked, bool kBias>
struct LogitRow {
  const float* x;
  const float* bias;
  int classes;  // in-row offsets fit in 32 bits, offsets of rows are 64-bit

  __device__ __forceinline__ float At(int column) const {
    return kBias ? x[column] + bias[column] : x[column];
  }
  // Columns `at` to `at` + 3; those behind the last are -infinity.
  __device__ __forceinline__ Pack<float, kQuad> Quad(int at) const {
    Pack<float, kQuad> quad;
    if constexpr (kPacked) {
      if (at >= classes) return {{-kInfinity, -kInfinity, -kInfinity, -kInfinity}};
      quad = LoadPack<kQuad>(x + at);
      if constexpr (kBias) {
        const Pack<float, kQuad> add = LoadPack<kQuad>(bias + at);
        for (int i = 0; i < kQuad; ++i) quad.v[i] += add.v[i];
      }
    } else {
      for (int i = 0; i < kQuad; ++i) quad.v[i] = at + i < classes ? At(at + i) : -kInfinity;
    }
    return quad;
  }
};

// out[at] to out[at + 3], rounded once; those behind the last class are left out.
template <bool kPacked, class S>
__device__ __forceinline__ void StoreQuad(S* out, int at, int classes,
                                          const Pack<float, kQuad>& quad) {
  if (kPacked) {
    Pack<S, kQuad> rounded;
    for (int i = 0; i < kQuad; ++i) rounded.v[i] = FromFloat<S>(quad.v[i]);
    if (at < classes) StorePack(out + at, rounded);
  } else {
    for (int i = 0; i < kQuad; ++i)
      if (at + i < classes) out[at + i] = FromFloat<S>(quad.v[i]);
  }
}

// Shared memory of a block that sums a row.
struct RowRoom {
  float* maxima;  // one for each warp
  double* sums;
  float* kept;  // the first `kept_columns` columns (a multiple of 4)
  int kept_columns;
};
__device__ __forceinline__ RowRoom TakeRowRoom(Shared& shared, int kept_columns) {
  RowRoom room;
  room.maxima = shared.Take<float>(kWarp);
  room.sums = shared.Take<double>(kWarp);
  room.kept = shared.Take<float>(kept_columns);
  room.kept_columns = kept_columns;
  return room;
}
// Columns to keep of a row: all, or of a longer one the first, where they are visited again.
inline int KeptColumns(int64_t classes, bool again) {
  if (classes <= kKeptColumns) return static_cast<int>((classes + kQuad - 1) / kQuad * kQuad);
  return again ? kKeptColumns : 0;
}
inline int64_t RowRoomBytes(int64_t kept_columns) {
  return SharedBytes<float>(kWarp) + SharedBytes<double>(kWarp) + SharedBytes<float>(kept_columns);
}

// The largest value of the block, on all threads. One use of `maxima`, one barrier.
__device__ __forceinline__ float RowMaximum(float most, float* maxima) {
  most = WarpMax(most);
  if (Lane() == 0) maxima[WarpIndex()] = most;
  SyncThreads();
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  return WarpMax(Lane() < warps ? maxima[Lane()] : -kInfinity);
}
// The sum over the block, on the first warp. One use of `sums`, one barrier.
__device__ __forceinline__ double RowSum(double sum, double* sums) {
  sum = WarpSum(sum);
  if (Lane() == 0) sums[WarpIndex()] = sum;
  SyncThreads();
  if (WarpIndex() != 0) return 0;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  return WarpSum(Lane() < warps ? sums[Lane()] : 0.0);
}

// What a row of logits comes to.
struct RowMass {
  float largest;  // logit; on all threads
  double others;  // sum of exp(logit - largest) without the target; on the first warp
};

// exp of a quad's logits, and their sum, without the target's (column `target`, -1: none).
__device__ __forceinline__ float ExpQuad(Pack<float, kQuad>& quad, float shift, int at,
                                         int target) {
  for (int i = 0; i < kQuad; ++i) quad.v[i] = expf(quad.v[i] - shift);
  if (InQuad(target, at)) {
    for (int i = 0; i < kQuad; ++i)
      if (at + i == target) quad.v[i] = 0;
  }
  return (quad.v[0] + quad.v[1]) + (quad.v[2] + quad.v[3]);
}

// Of a row that room.kept holds: its exponentials stay there, 0 for the target. Sums of four are
// f32, sums of those f64. Logits of -infinity alone have mass 0, not NaN, from `shift` 0.
template <class Row>
__device__ __forceinline__ RowMass MassOfKept(const Row& row, int target, const RowRoom& room) {
  float most = -kInfinity;
  const int step = static_cast<int>(blockDim.x) * kQuad;
  const int first = static_cast<int>(threadIdx.x) * kQuad;
  for (int base = first; base < row.classes; base += kFlight * step) {
    Pack<float, kQuad> quads[kFlight];
    for (int k = 0; k < kFlight; ++k) quads[k] = row.Quad(base + k * step);
    for (int k = 0; k < kFlight; ++k) {
      if (base + k * step < row.classes) StorePack(room.kept + base + k * step, quads[k]);
      for (int i = 0; i < kQuad; ++i) most = fmaxf(most, quads[k].v[i]);
    }
  }
  const float largest = RowMaximum(most, room.maxima);
  const float shift = largest == -kInfinity ? 0 : largest;
  double sum = 0;
  for (int at = first; at < row.classes; at += step) {
    Pack<float, kQuad> quad = LoadPack<kQuad>(room.kept + at);
    sum += static_cast<double>(ExpQuad(quad, shift, at, target));
    StorePack(room.kept + at, quad);
  }
  return {largest, RowSum(sum, room.sums)};
}

// Of a longer row, in one visit: each thread sums exponentials from a reference of its own, the
// largest logit of its first loads, which it replaces only by one that is larger by kSlack (sums in
// f64 hold e^kSlack of headroom, exponentials in f32 e^88). room.kept keeps the first logits.
template <class Row>
__device__ __forceinline__ RowMass MassOfLong(const Row& row, int target, const RowRoom& room) {
  constexpr float kSlack = 32;
  float most = -kInfinity, reference = -kInfinity;
  double sum = 0;
  const int step = static_cast<int>(blockDim.x) * kQuad;
  for (int base = static_cast<int>(threadIdx.x) * kQuad; base < row.classes;
       base += kFlight * step) {
    Pack<float, kQuad> quads[kFlight];
    for (int k = 0; k < kFlight; ++k) quads[k] = row.Quad(base + k * step);
    float group = -kInfinity;
    for (int k = 0; k < kFlight; ++k) {
      if (base + k * step < room.kept_columns) StorePack(room.kept + base + k * step, quads[k]);
      for (int i = 0; i < kQuad; ++i) group = fmaxf(group, quads[k].v[i]);
    }
    most = fmaxf(most, group);
    if (group > reference + kSlack) {
      if (reference != -kInfinity)
        sum *= std::exp(static_cast<double>(reference) - static_cast<double>(group));
      reference = group;
    }
    const float shift = reference == -kInfinity ? 0 : reference;
    for (int k = 0; k < kFlight; ++k)
      sum += static_cast<double>(ExpQuad(quads[k], shift, base + k * step, target));
  }
  const float largest = RowMaximum(most, room.maxima);
  // Nothing but -infinity leaves 0, or the NaN beside it.
  if (reference != -kInfinity)
    sum *= std::exp(static_cast<double>(reference) - static_cast<double>(largest));
  return {largest, RowSum(sum, room.sums)};
}

// What a row's loss and gradient are made of, in f64; products that meet a sum are fused by name,
// so that the bits do not depend on the kernel around them.
struct RowFigures {
  double loss, lse;
  double factor;           // gradient of a class other than the target: factor * exp(x - shift)
  double target_gradient;  // without the cancellation of p - 1
};

// shift: the row's maximum; at_target: the target's logit; others: the sum of exp(x - shift) over
// all classes but the target. Focal loss (Lin et al. 2017) as in core/ops/softmax_xent.h.
__device__ __forceinline__ RowFigures FiguresOf(double shift, double at_target, double others,
                                                double weight, double z_loss, double gamma) {
  const double distance = shift - at_target;
  const double own = std::exp(-distance);
  const double sum = others + own;
  const double log_sum = std::log(sum);
  const double lse = shift + log_sum;
  double loss = others < own ? std::log1p(others / own) : distance + log_sum;
  const double p = own / sum, rest = others / sum;
  double slope = 1;
  if (gamma != 0) {
    const double q = rest < 1e-12 ? 1e-12 : rest;
    const double power = std::pow(q, gamma);
    slope = std::fma(gamma * (power / q) * p, loss, power);
    loss *= power;
  }
  const double z = 2 * z_loss;
  const double both = std::fma(z, lse, slope);
  const double of_target = std::fma(z * lse, p, -(slope * rest));
  return {loss, lse, weight * both / sum, weight * of_target};
}

// What every thread needs for a row's gradient, in shared memory.
struct RowScale {
  float shift, factor, target_gradient;
};
__device__ __forceinline__ RowScale ScaleOf(const RowFigures& figures, double shift) {
  return {static_cast<float>(shift), static_cast<float>(figures.factor),
          static_cast<float>(figures.target_gradient)};
}
// A quad's gradient from exp(x - shift) of its classes.
__device__ __forceinline__ Pack<float, kQuad> GradientQuad(const Pack<float, kQuad>& exponentials,
                                                           const RowScale& scale, int at,
                                                           int target) {
  Pack<float, kQuad> gradient;
  for (int i = 0; i < kQuad; ++i) gradient.v[i] = scale.factor * exponentials.v[i];
  if (InQuad(target, at)) {
    for (int i = 0; i < kQuad; ++i)
      if (at + i == target) gradient.v[i] = scale.target_gradient;
  }
  return gradient;
}

// The arguments of both gradient kernels.
template <class S>
struct XentRows {
  const float* logits;
  const float* bias;
  const uint32_t* targets;
  const float* weight;
  S* dlogits;  // null: none
  float* loss;
  float* lse;
  int64_t rows;
  int classes;
  double z_loss, focal_gamma;

  template <bool kPacked, bool kBias>
  __device__ __forceinline__ LogitRow<kPacked, kBias> Row(int64_t r) const {
    return {logits + r * classes, bias, classes};
  }
};
template <class S, class Args>
XentRows<S> XentRowsOf(const Args& args) {
  const int64_t classes = args.logits.dim(1);
  const bool gradient = args.dlogits.defined() && classes > 0;
  return {args.logits.template data<float>(),
          args.bias.defined() ? args.bias.template data<float>() : nullptr,
          args.targets.template data<uint32_t>(),
          args.weight.template data<float>(),
          gradient ? args.dlogits.template data<S>() : nullptr,
          args.loss.template data<float>(),
          args.lse.template data<float>(),
          args.logits.dim(0),
          static_cast<int>(classes),
          args.z_loss,
          args.focal_gamma};
}

// Calls f(packed, bias) with std::bool_constants: whether rows can be read and written in quads,
// whether there is a bias. dlogits: null: none.
template <class S, class F>
void ByLogits(const Tensor& logits, const Tensor& bias, const S* dlogits, const F& f) {
  const int64_t classes = logits.dim(1);
  OT_CHECK(logits.dtype() == DType::kF32)
      << "the CUDA backend has no softmax for " << NameOf(logits.dtype());
  OT_CHECK_LT(classes, int64_t{1} << 30) << "offsets in a row are 32-bit";
  const bool with_bias = bias.defined();
  const bool packed = FitsPacks<kQuad>(logits.data<float>(), classes) &&
                      (!with_bias || FitsPacks<kQuad>(bias.data<float>(), classes)) &&
                      FitsPacks<kQuad>(dlogits, classes);
  const auto by_bias = [&](auto as_packs) {
    if (with_bias) {
      f(as_packs, std::true_type{});
    } else {
      f(as_packs, std::false_type{});
    }
  };
  if (packed) {
    by_bias(std::true_type{});
  } else {
    by_bias(std::false_type{});
  }
}

// Calls f(S()) with the gradient's storage, float where there is none.
template <class F>
void ByGradient(const Tensor& dlogits, const F& f) {
  if (dlogits.defined() && dlogits.dtype() == DType::kBF16) return f(bf16{});
  f(float{});
}

}  // namespace overtok::OT_BACKEND
