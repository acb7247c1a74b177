// Faults that users of other trainers reported, as they would show in one training step here. One
// test a fault, named for what it guards; faults of single parts (data, configuration, ops,
// optimizer) stand in the cases of their own folders.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>

#include "trainer/train_step.h"

namespace overtok {
namespace {

Config SmallConfig() {
  Config config;
  config.model.vocab_size = 29;
  config.model.hidden_size = 16;
  config.model.intermediate_size = 24;
  config.model.num_hidden_layers = 3;
  config.model.num_attention_heads = 4;
  config.model.num_key_value_heads = 2;
  config.model.head_dim = 4;
  config.optimizer.lr = 0.02;
  config.optimizer.adam_lr = 0.008;
  config.data.sequence_length = 8;
  config.train.steps = 10;
  config.train.batch_sequences = 4;
  config.train.micro_batch_sequences = 4;
  return config;
}

// Row 0 has one token that counts, row 1 none, the others seven.
Batch UnevenBatch() {
  Batch batch;
  batch.Resize(4, 8);
  std::mt19937 generator(2);
  for (size_t i = 0; i < 32; ++i) {
    const size_t row = i / 8, t = i % 8;
    batch.tokens[i] = generator() % 29;
    batch.segments[i] = 0;
    batch.loss_weight[i] = t == 7 || row == 1 || (row == 0 && t != 3) ? 0.0F : 1.0F;
    batch.weight_sum += batch.loss_weight[i];
  }
  return batch;
}

class Training {
 public:
  explicit Training(const Config& config)
      : memory_(Memory::Mode::kReal), step_(config, &mesh_, &memory_) {
    step_.Commit();
    step_.Initialize();
  }
  TrainStep& operator*() { return step_; }
  TrainStep* operator->() { return &step_; }
  std::vector<float> Gradient(const std::string& name) {
    const Tensor& g = step_.parameters().Find(name)->gradient;
    return {g.data<float>(), g.data<float>() + g.elements()};
  }
  std::vector<float> Value(const std::string& name) {
    const Tensor& v = step_.parameters().Find(name)->value;
    return {v.data<float>(), v.data<float>() + v.elements()};
  }

 private:
  Memory memory_;
  Mesh mesh_;
  TrainStep step_;
};

double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    norm += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference / norm);
}

// huggingface/transformers#34191, torchtune#1917, litgpt#751: a mean of micro-batch means weighs
// the single token of row 0 like the seven of row 2.
TEST(ReportedFaults, MicroBatchesAreWeighedByTokens) {
  Config config = SmallConfig();
  Training whole(config);
  const auto expected = whole->Gradients(UnevenBatch(), 0);
  ASSERT_TRUE(expected.ok());
  EXPECT_EQ(expected->weight_sum, 15);
  for (const int64_t micro : {1, 2}) {
    config.train.micro_batch_sequences = micro;
    Training split(config);
    const auto result = split->Gradients(UnevenBatch(), 0);
    ASSERT_TRUE(result.ok());
    // Only the order of fp32 sums differs.
    EXPECT_TRUE(std::abs(result->loss / expected->loss - 1) <= 1e-6);
    for (const Parameter& p : whole->parameters().all()) {
      EXPECT_TRUE(Distance(split.Gradient(p.spec.name), whole.Gradient(p.spec.name)) <= 1e-5)
          << p.spec.name;
    }
  }
}

// OLMo-core#702: the z-loss leaked into the reported cross-entropy, and was divided by
// micro-batches.
TEST(ReportedFaults, ZLossIsReportedApart) {
  Config config = SmallConfig();
  Training plain(config);
  config.loss.z_loss = 1e-2;
  Training with(config);
  config.train.micro_batch_sequences = 1;
  Training split(config);
  const auto a = plain->Gradients(UnevenBatch(), 0);
  const auto b = with->Gradients(UnevenBatch(), 0);
  const auto c = split->Gradients(UnevenBatch(), 0);
  ASSERT_TRUE(a.ok() && b.ok() && c.ok());
  EXPECT_EQ(a->loss_main, b->loss_main);
  EXPECT_EQ(a->z_loss, 0);
  EXPECT_GT(b->z_loss, 0);
  EXPECT_EQ(b->loss, b->loss_main + b->z_loss);
  EXPECT_TRUE(std::abs(c->z_loss / b->z_loss - 1) <= 1e-6);
}

// torchtitan#3174: a tied embedding's gradient was added twice; here also once in the norm of its
// group.
TEST(ReportedFaults, TiedGradientCountsOnceInTheNorm) {
  Config config = SmallConfig();
  config.model.tie_word_embeddings = true;
  Training tied(config);
  const auto result = tied->Gradients(UnevenBatch(), 0);
  ASSERT_TRUE(result.ok());
  double square = 0;
  for (const Parameter& p : tied->parameters().all()) {
    if (p.spec.group != OptimizerGroup::kAdam) continue;
    for (const float g : tied.Gradient(p.spec.name)) square += static_cast<double>(g) * g;
  }
  const double norm = result->norms[static_cast<size_t>(OptimizerGroup::kAdam)];
  EXPECT_TRUE(std::abs(norm / std::sqrt(square) - 1) <= 1e-9);
  EXPECT_EQ(result->norms[static_cast<size_t>(OptimizerGroup::kAdamH)], 0);
}

// levanter's Muon declared a rate that nobody read.
TEST(ReportedFaults, BothRatesAreRead) {
  Config config = SmallConfig();
  config.optimizer.lr = 1e-4;
  config.optimizer.adam_lr = 1e-4;
  Training once(config);
  config.optimizer.lr = 2e-4;
  config.optimizer.adam_lr = 2e-4;
  Training twice(config);
  for (const char* name :
       {"layers.1.mlp.up_proj.weight", "lm_head.weight", "embed.weight", "final_norm.weight"}) {
    Training fresh(SmallConfig());
    const std::vector<float> start = fresh.Value(name);
    ASSERT_TRUE(once->Run(UnevenBatch(), 0).ok());
    ASSERT_TRUE(twice->Run(UnevenBatch(), 0).ok());
    const std::vector<float> a = once.Value(name), b = twice.Value(name);
    std::vector<float> single(a.size()), half(a.size());
    for (size_t i = 0; i < a.size(); ++i) {
      single[i] = a[i] - start[i];
      half[i] = (b[i] - start[i]) / 2;
    }
    // Curvature of the sphere is of second order in the rate; rounding of values near 1 is 6e-8 of
    // them, 6e-4 of the step.
    EXPECT_TRUE(Distance(half, single) <= 5e-3) << name;
    once->Initialize();
    twice->Initialize();
    for (Training* t : {&once, &twice}) {
      for (const ShardedTensor& state : (*t)->optimizer().state()) {
        std::memset(state.tensor.raw(), 0, static_cast<size_t>(state.tensor.bytes()));
      }
    }
  }
}

// OLMo-core#610: a compared variable was the wrong one, so that some layers kept another scale.
TEST(ReportedFaults, EveryLayerStartsAtItsOwnScale) {
  Config config = SmallConfig();
  config.model.hidden_size = 64;
  config.model.intermediate_size = 160;
  config.model.head_dim = 32;
  Training training(config);
  for (const Parameter& p : training->parameters().all()) {
    if (p.spec.shape.rank() != 2) continue;
    const auto d = static_cast<double>(p.spec.shape[1]);
    const bool lookup = p.spec.name == "embed.weight";
    const double expected = 0.986578 / (lookup ? d : std::sqrt(d));
    double square = 0;
    for (const float v : training.Value(p.spec.name)) square += static_cast<double>(v) * v;
    const auto n = static_cast<double>(p.spec.shape.elements());
    // Five standard errors of a deviation from n draws.
    EXPECT_TRUE(std::abs(std::sqrt(square / n) / expected - 1) <= 5 / std::sqrt(2 * n))
        << p.spec.name;
  }
}

// OLMo-core#307: values hung on the order of construction. Here they are functions of (seed, name,
// index) alone.
TEST(ReportedFaults, InitialValuesDoNotDependOnTheRestOfTheModel) {
  Config config = SmallConfig();
  Training three(config);
  config.model.num_hidden_layers = 2;
  config.model.hybrid_norm = false;
  Training two(config);
  EXPECT_EQ(three.Value("layers.1.attn.q_proj.weight"), two.Value("layers.1.attn.q_proj.weight"));
  EXPECT_NE(three.Value("layers.1.attn.q_proj.weight"), three.Value("layers.0.attn.q_proj.weight"));
  config.train.seed = 1;
  Training other(config);
  EXPECT_NE(other.Value("lm_head.weight"), two.Value("lm_head.weight"));
}

}  // namespace
}  // namespace overtok
