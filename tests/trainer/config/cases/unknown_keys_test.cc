// Guards against: unknown keys that are dropped, at any level, and a mistake that does not say what
// was meant.
#include "tests/support/temporary_directory.h"
#include "tests/trainer/config/support.h"
#include "trainer/config/schema.h"

namespace overtok {
namespace {

using testing::kSmallConfig;
using testing::LoadSmall;

TEST(UnknownKeys, MisspeltKeyInAMisspeltSection) {
  OT_EXPECT_ERROR(LoadSmall({"optim.lerning_rate=1"}),
                  "command line: unknown key optim.lerning_rate; did you mean optimizer.lr?");
}

TEST(UnknownKeys, FileLineAndNearestKey) {
  OT_EXPECT_ERROR(LoadConfigText(std::string(kSmallConfig) + "eval:\n  every_step: 5\n", "f.yaml"),
                  "f.yaml:16: unknown key eval.every_step; did you mean eval.every_steps?");
  OT_EXPECT_ERROR(LoadSmall({"model.hiden_size=64"}), "did you mean model.hidden_size?");
  OT_EXPECT_ERROR(LoadSmall({"optimizer.newton_schulz.step=5"}),
                  "did you mean optimizer.newton_schulz.steps?");
  OT_EXPECT_ERROR(LoadSmall({"optimiser.lr=1"}), "did you mean optimizer.lr?");
}

TEST(UnknownKeys, RightKeyInTheWrongSection) {
  OT_EXPECT_ERROR(LoadSmall({"train.adam_lr=1"}),
                  "adam_lr belongs in the section optimizer: write optimizer.adam_lr");
  OT_EXPECT_ERROR(LoadSmall({"model.sequence_length=1"}), "write data.sequence_length");
  OT_EXPECT_ERROR(LoadSmall({"vocab_size=1"}), "write model.vocab_size");
  OT_EXPECT_ERROR(LoadSmall({"optimizer.warmup_steps=1"}), "optimizer.schedule.warmup_steps");
}

TEST(UnknownKeys, NamesOfOtherFrameworksAreNotAccepted) {
  OT_EXPECT_ERROR(LoadSmall({"model.n_embd=64"}), "it is called model.hidden_size here");
  OT_EXPECT_ERROR(LoadSmall({"optimizer.learning_rate=1"}), "it is called optimizer.lr here");
}

TEST(UnknownKeys, NothingNear) {
  OT_EXPECT_ERROR(LoadSmall({"checkpoint.zzzzzz=1"}),
                  "checkpoint has the keys directory, every_minutes, every_steps, keep");
  OT_EXPECT_ERROR(LoadSmall({"zzzzzz=1"}), "the sections are model, loss, optimizer");
}

TEST(UnknownKeys, EveryLevelOfEverySectionIsChecked) {
  for (const Key& key : ConfigKeys()) {
    const std::string section = key.name.substr(0, key.name.rfind('.'));
    OT_EXPECT_ERROR(LoadSmall({section + ".qqqqqq=1"}), "unknown key " + section + ".qqqqqq");
    OT_EXPECT_ERROR(LoadSmall({key.name + ".qqqqqq=1"}), key.name);
  }
}

TEST(UnknownKeys, DuplicateKey) {
  OT_EXPECT_ERROR(LoadConfigText(std::string(kSmallConfig) + "train:\n  seed: 1\n", "f.yaml"),
                  "f.yaml:15: duplicate key train, already given at f.yaml:12");
}

TEST(UnknownKeys, AllMistakesAreReportedAtOnce) {
  const auto loaded = LoadSmall({"model.hiden_size=64", "optimizer.lr=fast"});
  OT_EXPECT_ERROR(loaded, "model.hiden_size");
  OT_EXPECT_ERROR(loaded, "optimizer.lr: \"fast\" is not valid");
}

}  // namespace
}  // namespace overtok
