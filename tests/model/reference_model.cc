#include "tests/model/reference_model.h"

#include <algorithm>
#include <cmath>

namespace overtok::testing {
namespace {

using Vector = std::vector<double>;
using Rows = std::vector<Vector>;

Vector Norm(const Vector& x, const Vector& gain, double eps) {
  double square = 0;
  for (const double v : x) square += v * v;
  const double r = 1 / std::sqrt(square / static_cast<double>(x.size()) + eps);
  Vector y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * r * gain[i];
  return y;
}

// W x for W [out, in] stored by rows.
Vector Apply(const Vector& weight, const Vector& x) {
  Vector y(weight.size() / x.size(), 0.0);
  for (size_t o = 0; o < y.size(); ++o) {
    for (size_t i = 0; i < x.size(); ++i) y[o] += weight[o * x.size() + i] * x[i];
  }
  return y;
}

Vector Rotate(const Vector& x, double position, double theta) {
  const size_t half = x.size() / 2;
  Vector y(x.size());
  for (size_t i = 0; i < half; ++i) {
    const double angle =
        position * std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(x.size()));
    y[i] = x[i] * std::cos(angle) - x[i + half] * std::sin(angle);
    y[i + half] = x[i + half] * std::cos(angle) + x[i] * std::sin(angle);
  }
  return y;
}

// Heads of one position, normed and rotated: [heads][D].
Rows Heads(const Vector& flat, size_t width, const Vector* gain, double position,
           const ModelConfig& c) {
  Rows heads;
  for (size_t h = 0; h * width < flat.size(); ++h) {
    Vector x(flat.begin() + static_cast<std::ptrdiff_t>(h * width),
             flat.begin() + static_cast<std::ptrdiff_t>((h + 1) * width));
    heads.push_back(
        gain == nullptr ? x : Rotate(Norm(x, *gain, c.rms_norm_eps), position, c.rope_theta));
  }
  return heads;
}

double Dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

void AddBranch(const ModelConfig& c, const ReferenceParameters& p, const std::string& gain,
               Vector branch, Vector* x) {
  if (c.hybrid_norm) branch = Norm(branch, p.at(gain), c.rms_norm_eps);
  for (size_t i = 0; i < x->size(); ++i) (*x)[i] += branch[i];
}

void RunBlock(const ModelConfig& c, const ReferenceParameters& p, const std::string& prefix,
              const int32_t* segments, Rows* stream) {
  const auto width = static_cast<size_t>(c.head_dim);
  const auto heads = static_cast<size_t>(c.num_attention_heads);
  const size_t group = heads / static_cast<size_t>(c.num_key_value_heads);
  std::vector<Rows> q, k, v;
  for (size_t t = 0; t < stream->size(); ++t) {
    const Vector a = Norm((*stream)[t], p.at(prefix + "attn_in_norm.weight"), c.rms_norm_eps);
    const auto at = static_cast<double>(t);
    q.push_back(Heads(Apply(p.at(prefix + "attn.q_proj.weight"), a), width,
                      &p.at(prefix + "attn.q_norm.weight"), at, c));
    k.push_back(Heads(Apply(p.at(prefix + "attn.k_proj.weight"), a), width,
                      &p.at(prefix + "attn.k_norm.weight"), at, c));
    v.push_back(Heads(Apply(p.at(prefix + "attn.v_proj.weight"), a), width, nullptr, at, c));
  }
  for (size_t t = 0; t < stream->size(); ++t) {
    Vector out(heads * width, 0.0);
    for (size_t h = 0; h < heads; ++h) {
      Vector score(t + 1, -INFINITY);
      double top = -INFINITY;
      for (size_t j = 0; j <= t; ++j) {
        if (segments[j] != segments[t]) continue;
        score[j] = Dot(q[t][h], k[j][h / group]) / std::sqrt(static_cast<double>(width));
        top = std::max(top, score[j]);
      }
      double sum = 0;
      for (double& s : score) sum += (s = std::exp(s - top));
      for (size_t j = 0; j <= t; ++j) {
        for (size_t i = 0; i < width; ++i)
          out[h * width + i] += score[j] / sum * v[j][h / group][i];
      }
    }
    AddBranch(c, p, prefix + "attn_out_norm.weight",
              Apply(p.at(prefix + "attn.o_proj.weight"), out), &(*stream)[t]);
  }
  for (Vector& x : *stream) {
    const Vector b = Norm(x, p.at(prefix + "mlp_in_norm.weight"), c.rms_norm_eps);
    const Vector gate = Apply(p.at(prefix + "mlp.gate_proj.weight"), b);
    Vector up = Apply(p.at(prefix + "mlp.up_proj.weight"), b);
    for (size_t i = 0; i < up.size(); ++i) up[i] *= gate[i] / (1 + std::exp(-gate[i]));
    AddBranch(c, p, prefix + "mlp_out_norm.weight",
              Apply(p.at(prefix + "mlp.down_proj.weight"), up), &x);
  }
}

}  // namespace

ReferenceLoss ComputeReferenceLoss(const ModelConfig& config, const ReferenceParameters& parameters,
                                   const ReferenceBatch& batch) {
  const auto d = static_cast<size_t>(config.hidden_size);
  const auto length = static_cast<size_t>(batch.length);
  const Vector& embedding = parameters.at("embed.weight");
  const Vector& head = config.tie_word_embeddings ? embedding : parameters.at("lm_head.weight");
  ReferenceLoss result;
  double weight_sum = 0;
  for (size_t row = 0; row < static_cast<size_t>(batch.sequences); ++row) {
    const uint32_t* tokens = batch.tokens.data() + row * length;
    Rows stream;
    for (size_t t = 0; t < length; ++t) {
      const auto begin = embedding.begin() + static_cast<std::ptrdiff_t>(tokens[t] * d);
      stream.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(d));
    }
    for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
      RunBlock(config, parameters, "layers." + std::to_string(i) + ".",
               batch.segments.data() + row * length, &stream);
    }
    for (size_t t = 0; t + 1 < length; ++t) {
      const double weight = batch.loss_weight[row * length + t];
      const Vector logits =
          Apply(head, Norm(stream[t], parameters.at("final_norm.weight"), config.rms_norm_eps));
      const double top = *std::max_element(logits.begin(), logits.end());
      double sum = 0;
      for (const double z : logits) sum += std::exp(z - top);
      const double lse = top + std::log(sum);
      result.cross_entropy += weight * (lse - logits[tokens[t + 1]]);
      result.lse_squared += weight * lse * lse;
      weight_sum += weight;
    }
  }
  if (weight_sum > 0) {
    result.cross_entropy /= weight_sum;
    result.lse_squared /= weight_sum;
  }
  return result;
}

}  // namespace overtok::testing
