// The shipped recipes resolve to the published figures: steps, tokens, schedule, parameters, 6ND,
// FLOPs. Source of the figures: the published results of the recipe.
#include <cmath>
#include <ostream>

#include "optim/schedule.h"
#include "tests/support/temporary_directory.h"
#include "trainer/config/derived.h"
#include "trainer/config/load.h"

namespace overtok {
namespace {

struct Figures {
  const char* name;
  int64_t hidden, inner, layers, heads, kv_heads, head_dim;
  int64_t matrices, gains, embedding, total;
  double lr, adam_lr, momentum, eps, max_grad_norm;
  ScheduleConfig::Type schedule;
  int64_t warmup, batch, steps, tokens;
  double forward_flops, model_flops, head_share, backbone_flops;
  double passes;  // over 2,441,406 windows
};

void PrintTo(const Figures& figures, std::ostream* out) { *out << figures.name; }

constexpr Figures kFigures[] = {
    {"130m",
     512,
     1792,
     6,
     8,
     8,
     64,
     22806528,
     13568,
     65667072,
     154154240,
     0.02,
     0.008,
     0.95,
     1e-20,
     1,
     ScheduleConfig::Type::kLinear,
     0,
     128,
     4959,
     2599944192,
     227868672,
     1.77734e18,
     0.576,
     3.5577e17,
     0.26},
    {"300m",
     768,
     2688,
     12,
     12,
     12,
     64,
     102629376,
     39168,
     98500608,
     299669760,
     0.01,
     0.002,
     0.98,
     1e-15,
     1,
     ScheduleConfig::Type::kCosine,
     1000,
     128,
     11444,
     5999951872,
     555024384,
     9.99036e18,
     0.355,
     3.6946e18,
     0.60},
    {"520m",
     1024,
     3584,
     24,
     16,
     8,
     64,
     339738624,
     102400,
     131334144,
     602509312,
     0.01,
     0.002,
     0.98,
     1e-15,
     1,
     ScheduleConfig::Type::kCosine,
     1000,
     256,
     9918,
     10399776768,
     1349517312,
     4.21040e19,
     0.195,
     2.1199e19,
     1.04},
    {"1_2b",
     2048,
     7168,
     16,
     16,
     8,
     128,
     905969664,
     137216,
     262668288,
     1431443456,
     0.01,
     0.0015,
     0.98,
     1e-15,
     2,
     ScheduleConfig::Type::kCosine,
     1000,
     256,
     22888,
     23999807488,
     2877292544,
     2.07163e20,
     0.183,
     1.30459e20,
     2.40},
};

absl::StatusOr<LoadedConfig> LoadRecipe(const char* name) {
  return LoadConfig(std::string(OVERTOK_SOURCE_DIR "/configs/recipes/") + name + ".yaml", {});
}

// `digits` of the published figure are what can be compared.
void ExpectFigure(double value, double published, double relative) {
  EXPECT_TRUE(std::abs(value / published - 1) <= relative) << value << " against " << published;
}

class Recipes : public ::testing::TestWithParam<Figures> {};

TEST_P(Recipes, Settings) {
  const Figures& f = GetParam();
  const auto loaded = LoadRecipe(f.name);
  OT_ASSERT_OK(loaded);
  const Config& c = loaded->config;
  EXPECT_EQ(c.model.vocab_size, 128256);
  EXPECT_EQ(c.model.hidden_size, f.hidden);
  EXPECT_EQ(c.model.intermediate_size, f.inner);
  EXPECT_EQ(c.model.num_hidden_layers, f.layers);
  EXPECT_EQ(c.model.num_attention_heads, f.heads);
  EXPECT_EQ(c.model.num_key_value_heads, f.kv_heads);
  EXPECT_EQ(c.model.head_dim, f.head_dim);
  EXPECT_EQ(c.model.rope_theta, 10000);
  EXPECT_EQ(c.model.rms_norm_eps, 1e-5);
  EXPECT_TRUE(c.model.hybrid_norm);
  EXPECT_FALSE(c.model.tie_word_embeddings);
  EXPECT_EQ(c.loss.z_loss, 0);
  EXPECT_EQ(c.optimizer.lr, f.lr);
  EXPECT_EQ(c.optimizer.adam_lr, f.adam_lr);
  EXPECT_EQ(c.optimizer.momentum, f.momentum);
  EXPECT_TRUE(c.optimizer.nesterov);
  EXPECT_EQ(c.optimizer.newton_schulz.steps, 5);
  EXPECT_EQ(c.optimizer.newton_schulz.eps, 1e-5);
  EXPECT_EQ(c.optimizer.newton_schulz.coefficients,
            (std::array<double, 3>{3.4445, -4.775, 2.0315}));
  EXPECT_EQ(c.optimizer.beta1, 0.9);
  EXPECT_EQ(c.optimizer.beta2, 0.98);
  EXPECT_EQ(c.optimizer.eps, f.eps);
  EXPECT_EQ(c.optimizer.max_grad_norm, f.max_grad_norm);
  EXPECT_EQ(c.optimizer.schedule.min_lr_ratio, 0);
  EXPECT_EQ(c.data.sequence_length, 4096);
  EXPECT_EQ(c.data.order.type, OrderOptions::Type::kLinear);
  EXPECT_EQ(c.data.order.seed, 42u);
  EXPECT_EQ(c.data.order.block, 2048);
  EXPECT_FALSE(c.data.order.reshuffle);
  EXPECT_EQ(c.train.batch_sequences, f.batch);
  EXPECT_EQ(c.train.seed, 0u);
  EXPECT_EQ(c.eval.every_steps, 1000);
  EXPECT_FALSE(c.eval.at_start);
}

TEST_P(Recipes, LengthAndSchedule) {
  const Figures& f = GetParam();
  const auto loaded = LoadRecipe(f.name);
  OT_ASSERT_OK(loaded);
  const Config& c = loaded->config;
  EXPECT_EQ(c.train.steps, f.steps);
  EXPECT_EQ(TotalTokens(c), f.tokens);
  // Two decimals are published.
  EXPECT_TRUE(std::abs(PassesOverData(c, 2441406) - f.passes) <= 0.005);
  EXPECT_EQ(c.optimizer.schedule.type, f.schedule);
  EXPECT_EQ(c.optimizer.schedule.warmup_steps, f.warmup);
  const auto scale = [&](int64_t t) { return LrScale(c.optimizer.schedule, c.train.steps, t); };
  if (f.schedule == ScheduleConfig::Type::kLinear) {
    EXPECT_EQ(DecaySteps(c.optimizer.schedule, c.train.steps), 3967);
    EXPECT_EQ(FirstDecayingStep(c), 993);
    EXPECT_EQ(scale(0), 1);
    EXPECT_EQ(scale(992), 1);
    EXPECT_TRUE(scale(993) < 1);
    ExpectFigure(scale(4958), 2.5e-4, 0.01);  // two digits are published
  } else {
    EXPECT_EQ(FirstDecayingStep(c), 1001);
    EXPECT_EQ(scale(0), 0);
    EXPECT_EQ(scale(500), 0.5);
    EXPECT_EQ(scale(1000), 1);
    EXPECT_TRUE(scale(1001) < 1);
    const double half = 0.5 * static_cast<double>(f.steps + 1000);
    EXPECT_TRUE(scale(static_cast<int64_t>(half)) >= 0.5);
    EXPECT_TRUE(scale(static_cast<int64_t>(half) + 1) < 0.5);
    EXPECT_TRUE(scale(f.steps - 1) > 0 && scale(f.steps - 1) < 1e-7);
  }
}

TEST_P(Recipes, Parameters) {
  const Figures& f = GetParam();
  const auto loaded = LoadRecipe(f.name);
  OT_ASSERT_OK(loaded);
  const ParameterCounts counts = CountParameters(loaded->config.model);
  EXPECT_EQ(counts.block_matrices(), f.matrices);
  EXPECT_EQ(counts.norm_gains, f.gains);
  EXPECT_EQ(counts.embedding, f.embedding);
  EXPECT_EQ(counts.lm_head, f.embedding);
  EXPECT_EQ(counts.total(), f.total);
  EXPECT_EQ(counts.muonh() + counts.adamh() + counts.adam(), f.total);
}

TEST_P(Recipes, Flops) {
  const Figures& f = GetParam();
  const auto loaded = LoadRecipe(f.name);
  OT_ASSERT_OK(loaded);
  const Config& c = loaded->config;
  const ForwardFlops flops = LevanterForwardFlops(c.model, c.data.sequence_length);
  EXPECT_EQ(flops.total(), f.forward_flops);
  const auto tokens = static_cast<double>(TotalTokens(c));
  // Six, five and three digits are published.
  ExpectFigure(flops.training() * tokens, f.model_flops, 5e-6);
  ExpectFigure(BackboneFlops(c.model, tokens), f.backbone_flops, 2e-5);
  EXPECT_TRUE(std::abs(flops.head / flops.total() - f.head_share) <= 0.0006);
}

INSTANTIATE_TEST_SUITE_P(All, Recipes, ::testing::ValuesIn(kFigures),
                         [](const auto& recipe) { return std::string("r") + recipe.param.name; });

TEST(Derived, CausalCountSeesTheTriangleOnly) {
  ModelConfig model;
  model.vocab_size = 10;
  model.hidden_size = 6;
  model.intermediate_size = 5;
  model.num_hidden_layers = 2;
  model.num_attention_heads = 2;
  model.num_key_value_heads = 1;
  model.head_dim = 4;
  const ForwardFlops flops = CausalForwardFlops(model, 3);
  // Per layer 2 * (6 * 8 * 2 + 6 * 4 * 2 + 3 * 6 * 5); 1 + 2 + 3 attended positions in 3.
  EXPECT_EQ(flops.matrices, 2 * 2 * (96 + 48 + 90));
  EXPECT_EQ(flops.attention, 2 * 2 * (4 * 8 + 3 * 2));
  EXPECT_EQ(flops.head, 2 * 6 * 10);
}

// A tied head costs what an untied one does, and has no parameters of its own.
TEST(Derived, TiedModelsKeepTheirHeadsFlops) {
  auto loaded = LoadRecipe("130m");
  OT_ASSERT_OK(loaded);
  ModelConfig untied = loaded->config.model;
  ModelConfig tied = untied;
  tied.tie_word_embeddings = true;
  EXPECT_EQ(LevanterForwardFlops(tied, 4096).total(), LevanterForwardFlops(untied, 4096).total());
  EXPECT_EQ(CausalForwardFlops(tied, 4096).total(), CausalForwardFlops(untied, 4096).total());
  EXPECT_EQ(CountParameters(tied).total() + untied.vocab_size * untied.hidden_size,
            CountParameters(untied).total());
}

TEST(Quickstart, IsSmallEnoughForTwoCores) {
  const auto loaded = LoadConfig(OVERTOK_SOURCE_DIR "/configs/quickstart.yaml", {});
  OT_ASSERT_OK(loaded);
  const Config& c = loaded->config;
  EXPECT_GE(c.model.vocab_size, 16384);
  // Four minutes at the 7,800 tokens a second of two recent cores, less nine evaluations of six
  // seconds, with a quarter to spare.
  EXPECT_LE(TotalTokens(c), 1250000);
  EXPECT_TRUE(c.eval.enabled() && c.eval.at_start);
  EXPECT_EQ(c.train.steps % c.eval.every_steps, 0);
  EXPECT_EQ(c.checkpoint.directory, "runs/quickstart");
}

}  // namespace
}  // namespace overtok
