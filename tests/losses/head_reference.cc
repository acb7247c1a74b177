#include "tests/losses/head_reference.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "core/memory.h"

namespace overtok::testing {

HeadProblem::HeadProblem(int64_t t, int64_t d, int64_t v, float scale)
    : tokens(t), hidden(d), classes(v) {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal(0, 1);
  h.resize(static_cast<size_t>(t * d));
  w.resize(static_cast<size_t>(v * d));
  for (float& x : h) x = normal(generator) * scale;
  for (float& x : w) x = normal(generator);
  for (int64_t i = 0; i < t; ++i) {
    const auto any = static_cast<uint32_t>(generator() % static_cast<uint64_t>(v));
    targets.push_back(i == 0 ? static_cast<uint32_t>(v - 1) : i == 1 ? 0U : any);
    weight.push_back(i % 5 == 3 ? 0.0F : 1.0F);
  }
  double sum = 0;
  for (const float x : weight) sum += x;
  for (const float x : weight) gradient_weight.push_back(static_cast<float>(x / sum));
}

DenseHead ComputeDense(const HeadProblem& p, const HeadOptions& options) {
  DenseHead out;
  const auto d = static_cast<size_t>(p.hidden);
  const auto v = static_cast<size_t>(p.classes);
  out.dh.assign(p.h.size(), 0);
  out.dw.assign(p.w.size(), 0);
  std::vector<double> z(v);
  for (size_t t = 0; t < static_cast<size_t>(p.tokens); ++t) {
    double top = -INFINITY;
    for (size_t c = 0; c < v; ++c) {
      z[c] = options.bias.empty() ? 0.0 : static_cast<double>(options.bias[c]);
      for (size_t i = 0; i < d; ++i) z[c] += static_cast<double>(p.h[t * d + i]) * p.w[c * d + i];
      top = std::max(top, z[c]);
    }
    double sum = 0;
    for (size_t c = 0; c < v; ++c) sum += std::exp(z[c] - top);
    const double lse = top + std::log(sum);
    const double l = lse - z[p.targets[t]];
    const double rest = -std::expm1(-l), gamma = options.focal_gamma;
    const double factor = std::pow(rest, gamma);
    const double slope =
        gamma > 0 ? factor + gamma * std::pow(rest, gamma - 1) * std::exp(-l) * l : 1.0;
    out.token_loss.push_back(factor * l);
    out.loss += p.weight[t] * out.token_loss.back();
    out.lse_squared += p.weight[t] * lse * lse;
    out.weight += p.weight[t];
    if (p.gradient_weight[t] == 0) continue;
    for (size_t c = 0; c < v; ++c) {
      const double q = std::exp(z[c] - lse), onehot = c == p.targets[t] ? 1 : 0;
      const double g = p.gradient_weight[t] * (slope * (q - onehot) + 2 * options.z_loss * lse * q);
      for (size_t i = 0; i < d; ++i) {
        out.dh[t * d + i] += g * p.w[c * d + i];
        out.dw[c * d + i] += g * p.h[t * d + i];
      }
    }
  }
  return out;
}

double Distance(const std::vector<float>& a, const std::vector<double>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (a.at(i) - b[i]) * (a.at(i) - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

HeadOutcome RunTiled(HeadProblem& p, const HeadOptions& options, bool accumulate, bool gradients,
                     int64_t most) {
  Memory memory(Memory::Mode::kReal);
  Context context = CpuContext();
  LinearCrossEntropy head(&memory, p.tokens, p.hidden, most, DType::kF32, /*group=*/nullptr,
                          /*tile_bytes=*/1 << 20);
  memory.Commit(&context);
  HeadOutcome out;
  out.tile_rows = head.tile_rows(p.classes);
  out.dh.assign(p.h.size(), NAN);
  out.dw.assign(p.w.size(), accumulate ? 0.5F : NAN);
  std::vector<float> bias = options.bias;
  LinearCrossEntropyArgs args;
  args.hidden = Tensor(p.h.data(), {p.tokens, p.hidden});
  args.weight = Tensor(p.w.data(), {p.classes, p.hidden});
  if (!bias.empty()) args.bias = Tensor(bias.data(), {p.classes});
  args.targets = Tensor(p.targets.data(), {p.tokens});
  args.loss_weight = Tensor(p.weight.data(), {p.tokens});
  args.focal_gamma = options.focal_gamma;
  if (gradients) {
    args.gradient_weight = Tensor(p.gradient_weight.data(), {p.tokens});
    args.d_hidden = Tensor(out.dh.data(), {p.tokens, p.hidden});
    args.d_weight = Tensor(out.dw.data(), {p.classes, p.hidden});
    args.accumulate_d_weight = accumulate;
    args.z_loss = options.z_loss;
  }
  out.sums = head.RunAndRead(context, args);
  const float* losses = head.token_losses().data<float>();
  out.token_loss.assign(losses, losses + p.tokens);
  return out;
}

}  // namespace overtok::testing
