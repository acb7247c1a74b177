// Heads of a configuration, and the class and weight of every position for each of them.
#include "model/batch_view.h"

#include "core/check.h"
#include "model/ngram_rows.h"

namespace overtok {

const char* NameOf(HeadKind kind) {
  switch (kind) {
    case HeadKind::kMain:
      return "main";
    case HeadKind::kSecondToken:
      return "head2";
    case HeadKind::kGram2:
      return "gram2";
    case HeadKind::kGram3:
      return "gram3";
  }
  OT_CHECK(false) << "head " << static_cast<int>(kind);
  return nullptr;
}

std::vector<HeadKind> HeadsOf(const ModelConfig& model) {
  std::vector<HeadKind> heads = {HeadKind::kMain};
  if (model.second_token_head.has_value()) heads.push_back(HeadKind::kSecondToken);
  if (model.ngram_head.has_value()) {
    for (const int64_t order : model.ngram_head->orders) {
      OT_CHECK(order == 2 || order == 3) << "an n-gram head of order " << order;
      heads.push_back(order == 2 ? HeadKind::kGram2 : HeadKind::kGram3);
    }
  }
  return heads;
}

int64_t ReachOf(HeadKind kind) {
  switch (kind) {
    case HeadKind::kMain:
      return 1;
    case HeadKind::kSecondToken:
    case HeadKind::kGram2:
      return 2;
    case HeadKind::kGram3:
      return 3;
  }
  OT_CHECK(false) << "head " << static_cast<int>(kind);
  return 0;
}

int64_t ClassesOf(const ModelConfig& model, HeadKind kind) {
  if (kind == HeadKind::kMain || kind == HeadKind::kSecondToken) return model.vocab_size;
  OT_CHECK(model.ngram_head.has_value()) << "the model has no head " << NameOf(kind);
  return static_cast<int64_t>(OutputTable(*model.ngram_head, kind).modulus);
}

double LossWeightOf(const ModelConfig& model, HeadKind kind) {
  if (kind == HeadKind::kMain) return 1.0;
  if (kind == HeadKind::kSecondToken) {
    OT_CHECK(model.second_token_head.has_value()) << "the model has no second head";
    return model.second_token_head->weight;
  }
  OT_CHECK(model.ngram_head.has_value()) << "the model has no head " << NameOf(kind);
  return model.ngram_head->weight;
}

void FillTargets(const ModelConfig& model, HeadKind kind, const BatchView& batch, uint32_t* out) {
  const int64_t length = batch.length, reach = ReachOf(kind);
  const bool hashed = IsHashed(kind);
  const uint64_t modulus = static_cast<uint64_t>(ClassesOf(model, kind));
  const uint64_t vocab_size = static_cast<uint64_t>(model.vocab_size);
  for (int64_t b = 0; b < batch.sequences; ++b) {
    const uint32_t* tokens = batch.tokens + b * length;
    for (int64_t t = 0; t < length; ++t) {
      if (!hashed) {
        out[b * length + t] = tokens[(t + reach) % length];
        continue;
      }
      std::array<uint32_t, 3> z = {};
      for (int64_t j = 0; j < reach; ++j) z[static_cast<size_t>(j)] = tokens[(t + 1 + j) % length];
      out[b * length + t] = static_cast<uint32_t>(
          NgramRow({z.data(), static_cast<size_t>(reach)}, vocab_size, modulus));
    }
  }
}

double FillTargetWeights(HeadKind kind, const BatchView& batch, float* out) {
  const int64_t length = batch.length, reach = ReachOf(kind);
  double sum = 0;
  for (int64_t b = 0; b < batch.sequences; ++b) {
    const float* weight = batch.loss_weight + b * length;
    const int32_t* segments = batch.segments + b * length;
    for (int64_t t = 0; t < length; ++t) {
      float product = weight[t];
      if (kind != HeadKind::kMain) {
        // Segments never fall, so equal ends mean one document in between.
        const bool inside = t + reach < length && segments[t + reach] == segments[t];
        for (int64_t j = 1; inside && j < reach; ++j) product *= weight[t + j];
        if (!inside) product = 0;
      }
      out[b * length + t] = product;
      sum += product;
    }
  }
  return sum;
}

}  // namespace overtok
