// The composed model against an independent forward pass in double: losses, and every gradient
// against central differences of that pass, with every method on its own and several together. Then
// what must hold to the bit: recomputation, and the independence of evaluation from the pass shape.
#include "model/transformer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "core/parameter.h"
#include "tests/model/reference_model.h"
#include "trainer/train_step.h"

namespace overtok {
namespace {

using testing::ComputeReferenceLoss;
using testing::ReferenceBatch;
using testing::ReferenceLoss;
using testing::ReferenceMethods;
using testing::ReferenceParameters;
using testing::ReferenceSet;

struct Case {
  const char* name;
  int64_t heads, kv_heads, head_dim;
  bool hybrid, tied;
  double z_loss;
  int64_t micro;
};

Config MakeConfig(const Case& c) {
  Config config;
  config.model.vocab_size = 23;
  config.model.hidden_size = 12;
  config.model.intermediate_size = 20;
  config.model.num_hidden_layers = 2;
  config.model.num_attention_heads = c.heads;
  config.model.num_key_value_heads = c.kv_heads;
  config.model.head_dim = c.head_dim;
  config.model.hybrid_norm = c.hybrid;
  config.model.tie_word_embeddings = c.tied;
  config.loss.z_loss = c.z_loss;
  config.optimizer.lr = 0.02;
  config.optimizer.adam_lr = 0.008;
  config.data.sequence_length = 9;
  config.train.steps = 10;
  config.train.batch_sequences = 4;
  config.train.micro_batch_sequences = c.micro;
  config.train.seed = 3;
  return config;
}

// Rows with one to three documents, repeated ids, and one row that weighs nothing.
Batch MakeBatch(const Config& config) {
  Batch batch;
  batch.sequences = config.train.batch_sequences;
  batch.length = config.data.sequence_length;
  std::mt19937 generator(7);
  for (int64_t b = 0; b < batch.sequences; ++b) {
    int32_t segment = 0;
    for (int64_t t = 0; t < batch.length; ++t) {
      batch.tokens.push_back(generator() % static_cast<uint32_t>(config.model.vocab_size));
      batch.segments.push_back(segment);
      if ((b == 1 && t == 4) || (b == 2 && (t == 0 || t == 5))) ++segment;
      batch.loss_weight.push_back(t + 1 < batch.length && b != 3 ? 1.0F : 0.0F);
      batch.weight_sum += batch.loss_weight.back();
    }
  }
  batch.windows.assign(static_cast<size_t>(batch.sequences), 0);
  return batch;
}

ReferenceBatch ToReference(const Batch& batch) {
  return {batch.sequences, batch.length, batch.tokens, batch.segments, batch.loss_weight};
}

// Tables, candidates and so on over a case of the baseline.
struct MethodCase {
  const char* name;
  void (*set)(Config* config);
};

void Sample(int64_t candidates, Correction correction, int64_t block, Config* config) {
  SampledSoftmaxConfig sampled;
  sampled.stages = {{0.5, candidates}};
  sampled.correction = correction;
  config->loss.sampled_softmax = sampled;
  config->loss.block_sequences = block;
}

void AddTables(std::vector<int64_t> orders, int64_t splits, Config* config) {
  NgramEmbeddingConfig ngram;
  ngram.orders = std::move(orders);
  ngram.rows = 41;
  ngram.splits = splits;
  ngram.width = 5;
  config->model.ngram_embedding = ngram;
}

void AddGramHead(std::vector<int64_t> orders, int64_t rows, Correction correction, Config* config) {
  NgramHeadConfig head;
  head.orders = std::move(orders);
  head.rows = rows;
  head.width = 5;
  head.weight = 0.3;
  head.correction = correction;
  config->model.ngram_head = head;
}

// The sets that the model built, for the reference.
ReferenceMethods MethodsOf(const Config& config, const Transformer& model) {
  ReferenceMethods methods;
  methods.focal_gamma = config.loss.focal_gamma;
  methods.block_sequences = config.loss.block_sequences;
  for (const auto& head : model.heads()) {
    if (head->candidates() == nullptr) continue;
    std::vector<ReferenceSet>& sets = methods.sets[NameOf(head->kind())];
    for (const CandidateSet& set : head->candidates()->sets()) {
      ReferenceSet& out = sets.emplace_back();
      if (set.overflow) continue;
      const auto* ids = set.ids.data<uint32_t>();
      out.ids.assign(ids, ids + set.ids.elements());
      if (!set.bias.defined()) continue;
      const auto* bias = set.bias.data<float>();
      out.bias.assign(bias, bias + set.bias.elements());
    }
  }
  return methods;
}

// The gradient in the parameter's own shape; a table's rows that no id named are zero.
std::vector<float> DenseGradient(const Parameter& parameter) {
  std::vector<float> dense(static_cast<size_t>(parameter.spec.shape.elements()));
  if (!parameter.is_table()) {
    std::copy_n(parameter.gradient.data<float>(), dense.size(), dense.data());
    return dense;
  }
  const int64_t width = parameter.spec.shape[1];
  for (int64_t i = 0; i < parameter.touched.count; ++i) {
    const int64_t row = parameter.touched.rows.data<uint32_t>()[i];
    std::copy_n(parameter.touched.gradient.data<float>() + i * width, width,
                dense.data() + row * width);
  }
  return dense;
}

void CompareWithReference(const Config& config) {
  const Batch batch = MakeBatch(config);
  Memory memory(Memory::Mode::kReal);
  const Mesh mesh;
  TrainStep train(config, &mesh, &memory);
  train.Commit();
  train.Initialize();
  ReferenceParameters parameters;
  for (Parameter& parameter : train.parameters().all()) {
    // Gains of exactly 1 would hide a gain that is not applied.
    float* value = parameter.value.data<float>();
    if (parameter.spec.initializer == Initializer::kOnes) {
      for (int64_t i = 0; i < parameter.value.elements(); ++i)
        value[i] += 0.05F * static_cast<float>(i % 5) - 0.1F;
    }
    parameters[parameter.spec.name] =
        std::vector<double>(value, value + parameter.value.elements());
  }
  // A step on other ids first: nothing of it may be left in sets, touched rows or gradients.
  Batch other = batch;
  for (uint32_t& token : other.tokens) {
    token = static_cast<uint32_t>((token * 5 + 3) % static_cast<uint32_t>(config.model.vocab_size));
  }
  ASSERT_TRUE(train.Gradients(other, 0).ok());
  const auto result = train.Gradients(batch, 1);
  ASSERT_TRUE(result.ok()) << result.status();
  const ReferenceMethods methods = MethodsOf(config, train.model());

  const ReferenceBatch reference_batch = ToReference(batch);
  const auto total = [&] {
    const ReferenceLoss loss =
        ComputeReferenceLoss(config.model, methods, parameters, reference_batch);
    return loss.total + config.loss.z_loss * loss.lse_squared;
  };
  const ReferenceLoss loss =
      ComputeReferenceLoss(config.model, methods, parameters, reference_batch);
  // fp32 against double: a few hundred roundings of 6e-8 on a loss of about 3.
  for (const HeadResult& head : result->heads) {
    const double expected = loss.heads.at(NameOf(head.kind));
    EXPECT_TRUE(std::abs(head.loss - expected) <= 2e-6 * expected) << NameOf(head.kind);
  }
  EXPECT_EQ(result->heads.size(), loss.heads.size());
  EXPECT_TRUE(std::abs(result->loss - total()) <= 2e-6 * total());

  for (const Parameter& parameter : train.parameters().all()) {
    std::vector<double>& values = parameters[parameter.spec.name];
    const std::vector<float> gradient = DenseGradient(parameter);
    double difference = 0;
    double norm = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const double h = 1e-5;
      const double kept = values[i];
      values[i] = kept + h;
      const double above = total();
      values[i] = kept - h;
      const double below = total();
      values[i] = kept;
      const double expected = (above - below) / (2 * h);
      difference += (gradient[i] - expected) * (gradient[i] - expected);
      norm += expected * expected;
      if (parameter.is_table() && above == below) {
        EXPECT_EQ(gradient[i], 0);
      }
    }
    // Central differences in double are good to about 1e-9 here; what remains is fp32.
    EXPECT_TRUE(std::sqrt(difference) <= 2e-5 * std::sqrt(norm) + 1e-8)
        << parameter.spec.name << ": " << std::sqrt(difference) << " of " << std::sqrt(norm);
  }
}

class TransformerTest : public ::testing::TestWithParam<Case> {};

TEST_P(TransformerTest, LossAndEveryGradientAgreeWithDifferencesOfTheReference) {
  CompareWithReference(MakeConfig(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Shapes, TransformerTest,
                         ::testing::Values(Case{"baseline", 3, 3, 4, true, false, 0, 4},
                                           Case{"gqa", 4, 1, 6, true, false, 0, 4},
                                           Case{"tied", 3, 3, 4, true, true, 0, 2},
                                           Case{"no_hybrid_norm", 2, 2, 6, false, false, 0, 1},
                                           Case{"z_loss", 4, 2, 4, true, false, 1e-2, 2}),
                         [](const auto& instance) { return std::string(instance.param.name); });

class MethodsTest : public ::testing::TestWithParam<MethodCase> {};

TEST_P(MethodsTest, LossAndEveryGradientAgreeWithDifferencesOfTheReference) {
  Config config = MakeConfig({"", 2, 1, 4, false, false, 0, 2});
  config.model.num_hidden_layers = 1;
  config.model.hidden_size = 8;
  config.model.intermediate_size = 6;
  GetParam().set(&config);
  CompareWithReference(config);
}

// With blocks of 2 windows and micro-batches of 1, a block spans two micro-batches; with blocks of
// 1 and micro-batches of 2 it is the other way round. 17 of 23 classes hold every label of two
// windows, 9 do not.
INSTANTIATE_TEST_SUITE_P(
    Methods, MethodsTest,
    ::testing::Values(
        MethodCase{"sampled", [](Config* c) { Sample(17, Correction::kNone, 2, c); }},
        MethodCase{"sampled_across_micro_batches",
                   [](Config* c) {
                     Sample(17, Correction::kNone, 4, c);
                     c->train.micro_batch_sequences = 1;
                   }},
        MethodCase{"sampled_blocks_in_a_micro_batch",
                   [](Config* c) {
                     Sample(12, Correction::kInclusion, 1, c);
                     c->train.micro_batch_sequences = 4;
                   }},
        MethodCase{"sampled_overflow", [](Config* c) { Sample(7, Correction::kInclusion, 1, c); }},
        MethodCase{"sampled_inclusion_z_loss",
                   [](Config* c) {
                     Sample(19, Correction::kInclusion, 2, c);
                     c->loss.z_loss = 1e-2;
                   }},
        MethodCase{"sampled_uniform",
                   [](Config* c) {
                     Sample(17, Correction::kNone, 2, c);
                     c->loss.sampled_softmax->negatives = Negatives::kUniform;
                   }},
        MethodCase{"sampled_tied",
                   [](Config* c) {
                     Sample(17, Correction::kNone, 2, c);
                     c->model.tie_word_embeddings = true;
                   }},
        MethodCase{"tables",
                   [](Config* c) {
                     AddTables({2, 3}, 1, c);
                   }},
        MethodCase{"tables_split",
                   [](Config* c) {
                     AddTables({2, 3}, 2, c);
                   }},
        MethodCase{"tables_of_order_2", [](Config* c) { AddTables({2}, 1, c); }},
        MethodCase{"second_token_head",
                   [](Config* c) { c->model.second_token_head = SecondTokenHeadConfig{0.3}; }},
        MethodCase{"ngram_head", [](Config* c) { AddGramHead({2}, 53, Correction::kNone, c); }},
        MethodCase{"ngram_head_blocks",
                   [](Config* c) {
                     AddGramHead({2, 3}, 53, Correction::kInclusion, c);
                     c->loss.block_sequences = 4;
                     c->train.micro_batch_sequences = 1;
                   }},
        MethodCase{"ngram_head_of_few_classes",
                   [](Config* c) {
                     AddGramHead({2}, 13, Correction::kNone, c);
                     c->loss.block_sequences = 2;
                   }},
        MethodCase{"focal",
                   [](Config* c) {
                     c->loss.focal_gamma = 0.7;
                     c->model.second_token_head = SecondTokenHeadConfig{0.3};
                   }},
        MethodCase{"everything",
                   [](Config* c) {
                     Sample(17, Correction::kInclusion, 2, c);
                     AddTables({2, 3}, 1, c);
                     c->model.second_token_head = SecondTokenHeadConfig{0.2};
                     AddGramHead({2, 3}, 53, Correction::kNone, c);
                   }}),
    [](const auto& instance) { return std::string(instance.param.name); });

// Weights after some steps, as bytes.
std::vector<float> Trained(const Config& config, int steps) {
  Memory memory(Memory::Mode::kReal);
  const Mesh mesh;
  TrainStep train(config, &mesh, &memory);
  train.Commit();
  train.Initialize();
  const Batch batch = MakeBatch(config);
  for (int step = 0; step < steps; ++step) EXPECT_TRUE(train.Run(batch, step).ok());
  std::vector<float> all;
  for (const Parameter& p : train.parameters().all()) {
    all.insert(all.end(), p.value.data<float>(), p.value.data<float>() + p.value.elements());
  }
  return all;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(TransformerBits, RecomputationChangesNothing) {
  for (const DType precision : {DType::kF32, DType::kBF16}) {
    for (const bool hybrid : {true, false}) {
      Config config = MakeConfig({"", 4, 2, 4, hybrid, false, 0, 2});
      config.train.precision = precision;
      config.optimizer.newton_schulz.precision = precision == DType::kBF16
                                                     ? NewtonSchulzConfig::Precision::kBF16
                                                     : NewtonSchulzConfig::Precision::kF32;
      const std::vector<float> plain = Trained(config, 3);
      config.train.recompute = Recompute::kBlock;
      EXPECT_TRUE(SameBits(plain, Trained(config, 3)));
    }
  }
}

TEST(TransformerBits, RepeatedRunsAreEqual) {
  const Config config = MakeConfig({"", 4, 2, 4, true, false, 0, 2});
  EXPECT_TRUE(SameBits(Trained(config, 3), Trained(config, 3)));
}

TEST(Transformer, BatchWithoutWeightHasNoLossAndNoGradient) {
  const Config config = MakeConfig({"", 3, 3, 4, true, false, 1e-3, 2});
  Batch batch = MakeBatch(config);
  std::fill(batch.loss_weight.begin(), batch.loss_weight.end(), 0.0F);
  batch.weight_sum = 0;
  Memory memory(Memory::Mode::kReal);
  const Mesh mesh;
  TrainStep train(config, &mesh, &memory);
  train.Commit();
  train.Initialize();
  const auto result = train.Run(batch, 0);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->loss, 0);
  EXPECT_EQ(result->total_norm, 0);
  for (const Parameter& p : train.parameters().all()) {
    for (int64_t i = 0; i < p.gradient.elements(); ++i)
      ASSERT_EQ(p.gradient.data<float>()[i], 0) << p.spec.name;
    for (int64_t i = 0; i < p.value.elements(); ++i)
      ASSERT_TRUE(std::isfinite(p.value.data<float>()[i])) << p.spec.name;
  }
}

TEST(Transformer, NonFiniteLossUpdatesNothing) {
  const Config config = MakeConfig({"", 3, 3, 4, true, false, 0, 2});
  Memory memory(Memory::Mode::kReal);
  const Mesh mesh;
  TrainStep train(config, &mesh, &memory);
  train.Commit();
  train.Initialize();
  Parameter* head = train.parameters().Find("lm_head.weight");
  head->value.data<float>()[5] = std::nanf("");
  std::vector<float> before(train.parameters().Find("embed.weight")->value.data<float>(),
                            train.parameters().Find("embed.weight")->value.data<float>() + 23 * 12);
  const auto result = train.Run(MakeBatch(config), 4);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(std::string(result.status().message()).find("step 4"), std::string::npos);
  const float* after = train.parameters().Find("embed.weight")->value.data<float>();
  EXPECT_EQ(std::memcmp(before.data(), after, before.size() * sizeof(float)), 0);
  for (const ShardedTensor& state : train.optimizer().state()) {
    for (int64_t i = 0; i < state.tensor.elements(); ++i)
      ASSERT_EQ(state.tensor.data<float>()[i], 0) << state.name;
  }
}

TEST(Transformer, PlansWhatItTakes) {
  const Config config = MakeConfig({"", 4, 2, 4, true, false, 0, 2});
  const Mesh mesh;
  Memory dry(Memory::Mode::kDry);
  TrainStep planned(config, &mesh, &dry);
  planned.Commit();
  Memory real(Memory::Mode::kReal);
  TrainStep taken(config, &mesh, &real);
  taken.Commit();
  for (int i = 0; i < kPurposes; ++i) {
    EXPECT_EQ(dry.bytes(static_cast<Purpose>(i)), real.bytes(static_cast<Purpose>(i)));
  }
  EXPECT_GT(dry.bytes(Purpose::kActivations), 0);
}

}  // namespace
}  // namespace overtok
