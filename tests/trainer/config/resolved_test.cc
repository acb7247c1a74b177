// The resolved form: complete, and a fixed point.
#include "absl/strings/str_replace.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/config/support.h"
#include "trainer/config/key.h"
#include "trainer/config/schema.h"

namespace overtok {
namespace {

using ::testing::HasSubstr;
using testing::LoadSmall;
using ::testing::Not;

const std::vector<std::vector<std::string>>& Variants() {
  static const auto* const variants = new std::vector<std::vector<std::string>>{
      {},
      {"optimizer.schedule={type: cosine, warmup_steps: 3}"},
      {"optimizer.schedule.decay=0"},
      {"data.order={type: sequential}"},
      {"data.order={type: feistel, seed: 7, reshuffle: true}"},
      {"data.order={a: 5, b: 0}", "data.passes=2.4"},
      {"data.unique_tokens=1K", "train.precision=bf16"},
      {"eval={held_out: ['a b', 'x:y', '10', 'true', 'é', 'q\"\\z'], tail: keep}"},
      {"eval={paloma: corpus/paloma, at_start: true}", "data.train=['*.h5', a/*.h5]"},
      {"optimizer.newton_schulz={coefficients: [0.1, -1e-7, 3], precision: bf16}"},
      {"optimizer.newton_schulz.precision=tf32"},
      {"optimizer.lr=0.1", "optimizer.eps=1e-300", "optimizer.adam_lr=0.30000000000000004"},
      {"train.steps=null", "train.tokens=10K", "checkpoint.directory=runs/x"},
      {"model.ngram_embedding={}"},
      {"model.ngram_embedding={orders: [2], rows: 1001, splits: 3, width: 5, moduli: prime, "
       "row_dropout: 0.25, each_pass: rehash}",
       "optimizer.tables={update: adagrad, second_moment: row, storage: bf16, lr_scale: 7, "
       "untouched_decay: 0.125, freeze_step: 3}"},
      {"model.ngram_embedding={}", "optimizer.tables={beta1: 0, freeze_after_passes: 1.5}",
       "data.passes=2"},
      {"model.ngram_embedding={}", "optimizer.tables.freeze_after_passes=1.5"},
      {"model.second_token_head={weight: 0.25}", "loss.focal_gamma=1", "eval.held_out=x",
       "eval.pass_offsets=[-10, 0, 3]"},
      {"model.ngram_head={orders: [2, 3], rows: 77, correction: inclusion}",
       "optimizer.tables.update=sgd"},
      {"loss.sampled_softmax={stages: [{until: 1e-1, candidates: 20}, {until: 1, candidates: 100}],"
       " correction: inclusion, negatives: uniform, block_sequences: 2}",
       "loss.z_loss=1e-4"},
      {"loss.sampled_softmax={stages: [{until: 0.5, candidates: 20}]}",
       "eval={paloma: x, inclusion_adjusted: true}"},
  };
  return *variants;
}

TEST(Resolved, LoadsBackUnchanged) {
  for (const auto& overrides : Variants()) {
    const auto loaded = LoadSmall(overrides);
    OT_ASSERT_OK(loaded);
    const std::string text = ResolvedYaml(loaded->config);
    const auto again = LoadConfigText(text, "resolved.yaml");
    OT_ASSERT_OK(again);
    EXPECT_EQ(ResolvedYaml(again->config), text);
    // Value for value, those included that the text leaves out.
    for (const Key& key : ConfigKeys()) {
      EXPECT_EQ(key.write(again->config), key.write(loaded->config)) << key.name;
    }
    // But where a device's size decides, which only a run knows.
    EXPECT_THAT(absl::StrReplaceAll(text, {{"memory: auto", "memory:"}}), Not(HasSubstr("auto")));
  }
}

TEST(Resolved, EveryActiveKeyIsWritten) {
  const auto loaded = LoadSmall();
  OT_ASSERT_OK(loaded);
  const auto tree = ParseYaml(ResolvedYaml(loaded->config), "resolved.yaml");
  OT_ASSERT_OK(tree);
  for (const Key& key : ConfigKeys()) {
    const bool other_horizon = key.name == "train.tokens" || key.name == "train.passes_over_data" ||
                               key.name == "train.tokens_per_parameter";
    const bool active = FindInactive(key.name, loaded->config) == nullptr && !other_horizon &&
                        !IsOff(key.name, loaded->config);
    EXPECT_EQ(tree->At(key.name) != nullptr, active) << key.name;
  }
  for (const OptionalSection& section : ConfigOptionalSections()) {
    ASSERT_NE(tree->At(section.name), nullptr) << section.name;
    EXPECT_EQ(tree->At(section.name)->kind, YamlValue::Kind::kNull) << section.name;
  }
  EXPECT_EQ(tree->At("train.steps")->text, "20");
  EXPECT_EQ(tree->At("model.head_dim")->text, "8");
  EXPECT_EQ(tree->At("optimizer.newton_schulz.precision")->text, "f32");
  EXPECT_EQ(tree->At("optimizer.newton_schulz.coefficients")->text, "simple");
}

TEST(Resolved, ReadsAsWritten) {
  const auto loaded = LoadSmall();
  OT_ASSERT_OK(loaded);
  EXPECT_THAT(ResolvedYaml(loaded->config), HasSubstr(R"(optimizer:
  lr: 0.02
  adam_lr: 0.008
  momentum: 0.95
  nesterov: true
  newton_schulz:
    steps: 5
    eps: 1e-05
    coefficients: simple
    precision: f32
  beta1: 0.9
)"));
}

TEST(Resolved, TextsThatNeedQuotesGetThem) {
  EXPECT_EQ(FormatText("runs/130m"), "runs/130m");
  EXPECT_EQ(FormatText("corpus/*.h5"), "corpus/*.h5");
  for (const char* text : {"", "10", "true", "No", "null", "auto", "~", "*.h5", "a: b", "a #b",
                           "-x", "0x1", "[a]", "a,b", "a\nb", "y"}) {
    EXPECT_EQ(FormatText(text)[0], '"') << text;
  }
}

}  // namespace
}  // namespace overtok
