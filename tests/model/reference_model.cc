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

struct Place {
  const ReferenceBatch& batch;
  size_t row, length;
  uint32_t token(size_t t) const { return batch.tokens[row * length + t % length]; }
  int32_t segment(size_t t) const { return batch.segments[row * length + t]; }
  double weight(size_t t) const { return batch.loss_weight[row * length + t]; }
};

// z_0 + z_1 V + z_2 V^2 modulo m. V is tiny here, so that nothing overflows.
size_t Hash(const std::vector<uint64_t>& z, uint64_t vocabulary, uint64_t modulus) {
  uint64_t value = 0, power = 1;
  for (const uint64_t part : z) {
    value += part * power;
    power *= vocabulary;
  }
  return static_cast<size_t>(value % modulus);
}

Vector RowOf(const Vector& table, size_t row, size_t width) {
  const auto begin = table.begin() + static_cast<std::ptrdiff_t>(row * width);
  return {begin, begin + static_cast<std::ptrdiff_t>(width)};
}

Vector Input(const ModelConfig& c, const ReferenceParameters& p, const Place& at, size_t t) {
  const auto d = static_cast<size_t>(c.hidden_size);
  Vector x = RowOf(p.at("embed.weight"), at.token(t), d);
  if (!c.ngram_embedding.has_value()) return x;
  const NgramEmbeddingConfig& ngram = *c.ngram_embedding;
  size_t number = 0;
  for (const int64_t order : ngram.orders) {
    for (int64_t k = 0; k < ngram.splits; ++k, ++number) {
      std::vector<uint64_t> z;
      for (size_t back = 0; back < static_cast<size_t>(order); ++back) {
        const bool there = t >= back && at.segment(t - back) == at.segment(t);
        z.push_back(there ? at.token(t - back) : 0);
      }
      const std::string prefix = "ngram." + std::to_string(number) + ".";
      const size_t row = Hash(z, static_cast<uint64_t>(c.vocab_size),
                              static_cast<uint64_t>(ngram.rows) + 4 * number);
      const Vector part =
          Apply(p.at(prefix + "proj.weight"),
                RowOf(p.at(prefix + "table.weight"), row, static_cast<size_t>(ngram.width)));
      for (size_t i = 0; i < d; ++i) x[i] += part[i];
    }
  }
  for (double& v : x) v /= static_cast<double>(1 + number);
  return x;
}

struct HeadOf {
  std::string name;
  size_t reach;
  bool hashed;
  double weight;
  size_t classes;
};

std::vector<HeadOf> Heads(const ModelConfig& c) {
  const auto vocabulary = static_cast<size_t>(c.vocab_size);
  std::vector<HeadOf> heads = {{"main", 1, false, 1, vocabulary}};
  if (c.second_token_head.has_value()) {
    heads.push_back({"head2", 2, false, c.second_token_head->weight, vocabulary});
  }
  if (c.ngram_head.has_value()) {
    for (const int64_t order : c.ngram_head->orders) {
      heads.push_back({"gram" + std::to_string(order), static_cast<size_t>(order), true,
                       c.ngram_head->weight,
                       static_cast<size_t>(c.ngram_head->rows + (order == 3 ? 4 : 0))});
    }
  }
  return heads;
}

size_t TargetOf(const ModelConfig& c, const HeadOf& head, const Place& at, size_t t) {
  if (!head.hashed) return at.token(t + head.reach);
  std::vector<uint64_t> z;
  for (size_t ahead = 1; ahead <= head.reach; ++ahead) z.push_back(at.token(t + ahead));
  return Hash(z, static_cast<uint64_t>(c.vocab_size), head.classes);
}

double WeightOf(const HeadOf& head, const Place& at, size_t t) {
  if (t + head.reach >= at.length) return 0;
  double weight = 1;
  for (size_t ahead = 0; ahead < head.reach; ++ahead) weight *= at.weight(t + ahead);
  if (head.reach == 1) return weight;
  return at.segment(t) == at.segment(t + head.reach) ? weight : 0;
}

Vector ClassVector(const ModelConfig& c, const ReferenceParameters& p, const HeadOf& head,
                   size_t id) {
  if (head.hashed) {
    return Apply(p.at(head.name + ".out.weight"), RowOf(p.at(head.name + ".table.weight"), id,
                                                        static_cast<size_t>(c.ngram_head->width)));
  }
  const auto d = static_cast<size_t>(c.hidden_size);
  if (head.name == "head2") return RowOf(p.at("head2.lm_head.weight"), id, d);
  return RowOf(p.at(c.tie_word_embeddings ? "embed.weight" : "lm_head.weight"), id, d);
}

struct Scores {
  double loss, lse;
};

Scores Score(const ModelConfig& c, const ReferenceMethods& methods, const ReferenceParameters& p,
             const HeadOf& head, const Place& at, size_t t, const Vector& state) {
  ReferenceSet set;
  const auto given = methods.sets.find(head.name);
  if (given != methods.sets.end()) {
    set = given->second[at.row / static_cast<size_t>(methods.block_sequences)];
  }
  if (set.ids.empty()) {
    for (size_t id = 0; id < head.classes; ++id) set.ids.push_back(static_cast<uint32_t>(id));
  }
  const size_t target = TargetOf(c, head, at, t);
  Vector logits;
  double of_target = NAN;
  for (size_t i = 0; i < set.ids.size(); ++i) {
    logits.push_back(Dot(ClassVector(c, p, head, set.ids[i]), state) +
                     (set.bias.empty() ? 0 : set.bias[i]));
    if (set.ids[i] == target) of_target = logits.back();
  }
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double z : logits) sum += std::exp(z - top);
  const double lse = top + std::log(sum);
  double loss = lse - of_target;
  if (methods.focal_gamma > 0) loss *= std::pow(-std::expm1(-loss), methods.focal_gamma);
  return {loss, lse};
}

}  // namespace

ReferenceLoss ComputeReferenceLoss(const ModelConfig& config, const ReferenceMethods& methods,
                                   const ReferenceParameters& parameters,
                                   const ReferenceBatch& batch) {
  const auto length = static_cast<size_t>(batch.length);
  const std::vector<HeadOf> heads = Heads(config);
  Vector sums(heads.size(), 0.0), weights(heads.size(), 0.0);
  double lse_squared = 0;
  for (size_t row = 0; row < static_cast<size_t>(batch.sequences); ++row) {
    const Place at{batch, row, length};
    Rows stream;
    for (size_t t = 0; t < length; ++t) stream.push_back(Input(config, parameters, at, t));
    for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
      RunBlock(config, parameters, "layers." + std::to_string(i) + ".",
               batch.segments.data() + row * length, &stream);
    }
    for (size_t t = 0; t < length; ++t) {
      const Vector h = Norm(stream[t], parameters.at("final_norm.weight"), config.rms_norm_eps);
      for (size_t i = 0; i < heads.size(); ++i) {
        const double weight = WeightOf(heads[i], at, t);
        if (weight == 0) continue;
        const Vector state = i == 0 ? h : Apply(parameters.at(heads[i].name + ".proj.weight"), h);
        const Scores scores = Score(config, methods, parameters, heads[i], at, t, state);
        sums[i] += weight * scores.loss;
        weights[i] += weight;
        if (i == 0) lse_squared += weight * scores.lse * scores.lse;
      }
    }
  }
  ReferenceLoss result;
  for (size_t i = 0; i < heads.size(); ++i) {
    const double mean = weights[i] > 0 ? sums[i] / weights[i] : 0;
    result.heads[heads[i].name] = mean;
    result.total += heads[i].weight * mean;
  }
  if (weights[0] > 0) result.lse_squared = lse_squared / weights[0];
  return result;
}

}  // namespace overtok::testing
