#include "trainer/config/load.h"

#include <fstream>

#include "core/io/files.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/config/support.h"

namespace overtok {
namespace {

using testing::kSmallConfig;
using testing::LoadSmall;
using testing::TemporaryDirectory;

void Write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

TEST(Load, ValuesDefaultsAndAutos) {
  const auto loaded =
      LoadSmall({"loss.z_loss=1e-4", "train.precision=bf16", "eval.held_out=[a, b]"});
  OT_ASSERT_OK(loaded);
  const Config& config = loaded->config;
  EXPECT_EQ(config.model.vocab_size, 100);
  EXPECT_EQ(config.model.head_dim, 8);
  EXPECT_EQ(config.model.num_key_value_heads, 4);
  EXPECT_EQ(config.model.rope_theta, 10000);
  EXPECT_TRUE(config.model.hybrid_norm);
  EXPECT_EQ(config.loss.z_loss, 1e-4);
  EXPECT_EQ(config.optimizer.eps, 1e-20);
  using Precision = NewtonSchulzConfig::Precision;
  EXPECT_EQ(config.optimizer.newton_schulz.precision, Precision::kBF16);
  for (const char* device : {"cpu", "emulated"}) {
    const auto tf32 = LoadSmall(
        {"optimizer.newton_schulz.precision=tf32", std::string("train.device=") + device});
    OT_ASSERT_OK(tf32);
    EXPECT_EQ(tf32->config.optimizer.newton_schulz.precision, Precision::kTF32);
  }
  EXPECT_EQ(config.optimizer.newton_schulz.coefficients, kSimpleNewtonSchulz);
  EXPECT_EQ(config.train.micro_batch_sequences, 8);
  EXPECT_EQ(config.train.steps, 20);
  EXPECT_EQ(config.eval.held_out, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(config.data.order.block, 2048);
  EXPECT_EQ(loaded->Where("loss.z_loss"), "command line: loss.z_loss");
  EXPECT_EQ(loaded->Where("optimizer.lr"), "small.yaml:8: optimizer.lr");
  EXPECT_EQ(loaded->Where("optimizer.eps"), "default: optimizer.eps");
}

TEST(Load, MissingKeysAreNamed) {
  const auto loaded = LoadConfigText("model: {vocab_size: 10}\n", "f.yaml");
  OT_EXPECT_ERROR(loaded, "f.yaml: model.hidden_size is missing; expected a whole number >= 1");
  OT_EXPECT_ERROR(loaded, "f.yaml: optimizer.lr is missing; expected a number >= 0");
}

TEST(Load, WrongTypes) {
  OT_EXPECT_ERROR(LoadSmall({"model.vocab_size=abc"}),
                  "command line: model.vocab_size: \"abc\" is not valid; expected a whole number");
  OT_EXPECT_ERROR(LoadSmall({"model.vocab_size=010"}), "a leading 0 would mean octal");
  OT_EXPECT_ERROR(LoadSmall({"model.vocab_size=0x10"}), "write it in decimal");
  OT_EXPECT_ERROR(LoadSmall({"model.vocab_size='100'"}), "remove the quotes");
  OT_EXPECT_ERROR(LoadSmall({"model.vocab_size=100.5"}), "expected a whole number");
  OT_EXPECT_ERROR(LoadSmall({"model.vocab_size=[100]"}), "a list is not valid");
  OT_EXPECT_ERROR(LoadSmall({"model.vocab_size=null"}), "null is not valid");
  OT_EXPECT_ERROR(LoadSmall({"model.vocab_size=true"}), "expected a whole number");
  OT_EXPECT_ERROR(LoadSmall({"model.vocab_size=auto"}), "expected a whole number");
  OT_EXPECT_ERROR(LoadSmall({"optimizer.lr=nan"}), "expected a number >= 0");
  OT_EXPECT_ERROR(LoadSmall({"optimizer.lr=-1"}), "expected a number >= 0");
  OT_EXPECT_ERROR(LoadSmall({"optimizer.schedule.decay=1.5"}), "expected a number >= 0 and <= 1");
  OT_EXPECT_ERROR(LoadSmall({"optimizer.eps=0"}), "expected a number > 0");
  for (const char* word : {"yes", "on", "True", "1", "'true'"}) {
    OT_EXPECT_ERROR(LoadSmall({std::string("model.hybrid_norm=") + word}),
                    "expected true or false");
  }
  OT_EXPECT_ERROR(LoadSmall({"model.hybrid_norm=yes"}), "only these two words");
  OT_EXPECT_ERROR(LoadSmall({"optimizer.schedule.type=liner"}), "did you mean linear?");
  OT_EXPECT_ERROR(LoadSmall({"train.precision=fp16"}), "expected f32 | bf16");
  OT_EXPECT_ERROR(LoadSmall({"optimizer.newton_schulz.precision=fp32"}),
                  "expected f32 | tf32 | bf16");
  OT_EXPECT_ERROR(LoadSmall({"train.device=gpu"}), "expected cpu | cuda | emulated");
  OT_EXPECT_ERROR(LoadSmall({"checkpoint.directory=10"}), "put it in quotes");
  OT_EXPECT_ERROR(LoadSmall({"optimizer=3"}), "optimizer is a section of keys");
  OT_EXPECT_ERROR(LoadSmall({"parallel.tensor=0"}), "<= 64");
  OT_EXPECT_ERROR(LoadSmall({"optimizer.newton_schulz.coefficients=[1, 2]"}), "list of 3 numbers");
}

TEST(Load, AttentionByCudnnNeedsCudaInBf16) {
  const std::vector<std::string> cudnn = {"train.attention=cudnn", "train.device=cuda",
                                          "train.precision=bf16", "model.head_dim=64"};
  const auto loaded = LoadSmall(cudnn);
  OT_ASSERT_OK(loaded);
  EXPECT_EQ(loaded->config.train.attention, AttentionKind::kCudnn);
  const auto with = [&](const char* last) {
    std::vector<std::string> keys = cudnn;
    keys.emplace_back(last);
    return LoadSmall(keys);
  };
  for (const char* device : {"train.device=cpu", "train.device=emulated"})
    OT_EXPECT_ERROR(with(device), "train.attention: cudnn computes on cuda alone");
  OT_EXPECT_ERROR(with("train.precision=f32"), "train.attention: cudnn computes in bf16 alone");
  OT_EXPECT_ERROR(with("model.head_dim=40"), "heads of a multiple of 16 values");
  OT_EXPECT_ERROR(LoadSmall({"train.attention=flash"}), "expected kernels | cudnn");
}

TEST(Load, CommandLineTakesAnyYamlAndTheLastValueHolds) {
  const auto loaded = LoadSmall({"optimizer.schedule={type: cosine, warmup_steps: 2}",
                                 "optimizer.newton_schulz.coefficients=[2, -1.5, 0.5]",
                                 "train.seed=1", "train.seed=4_096", "data.train=[a/*.h5, b.h5]"});
  OT_ASSERT_OK(loaded);
  EXPECT_EQ(loaded->config.optimizer.schedule.type, ScheduleConfig::Type::kCosine);
  EXPECT_EQ(loaded->config.optimizer.schedule.warmup_steps, 2);
  EXPECT_EQ(loaded->config.optimizer.newton_schulz.coefficients,
            (std::array<double, 3>{2, -1.5, 0.5}));
  EXPECT_EQ(loaded->config.train.seed, 4096u);
  EXPECT_EQ(loaded->config.data.train, (std::vector<std::string>{"a/*.h5", "b.h5"}));
  OT_EXPECT_ERROR(LoadSmall({"base=a.yaml"}), "base is a key of files");
  OT_EXPECT_ERROR(LoadConfigText("base: a.yaml\n", "f.yaml"), "f.yaml:1: base: only a file");
}

TEST(Load, NullOnTheCommandLineRemovesWhatTheFileSays) {
  const std::string text = std::string(kSmallConfig) + "eval: {paloma: x, tail: keep}\n";
  auto loaded = LoadConfigText(text, "f.yaml", {"eval.paloma=y"});
  OT_ASSERT_OK(loaded);
  EXPECT_EQ(loaded->config.eval.tail, EvalConfig::Tail::kKeep);
  loaded = LoadConfigText(text, "f.yaml", {"eval=null", "eval.paloma=y"});
  OT_ASSERT_OK(loaded);
  EXPECT_EQ(loaded->config.eval.tail, EvalConfig::Tail::kDrop);
}

// Whatever a file holds, loading it is an answer or an error.
TEST(Load, DamagedFilesAreErrors) {
  uint32_t state = 1;
  const auto next = [&state](size_t below) {
    state = state * 1664525u + 1013904223u;
    return static_cast<size_t>(state >> 8) % below;
  };
  constexpr char kBytes[] = "\0\n :{}[]&*!|>'\"%@`#,-?~<=0x\xff\t";
  int refused = 0;
  for (int i = 0; i < 1000; ++i) {
    std::string text = kSmallConfig;
    for (size_t n = next(4) + 1; n > 0; --n) {
      const size_t at = next(text.size());
      switch (next(3)) {
        case 0:
          text[at] = kBytes[next(sizeof(kBytes) - 1)];
          break;
        case 1:
          text.erase(at, next(8));
          break;
        default:
          text.insert(at, 1, kBytes[next(sizeof(kBytes) - 1)]);
          break;
      }
    }
    const auto loaded = LoadConfigText(text, "f.yaml");
    if (loaded.ok()) continue;
    ++refused;
    EXPECT_FALSE(loaded.status().message().empty());
  }
  EXPECT_GT(refused, 500);
}

TEST(Load, BasesAreRelativeToTheFileThatNamesThem) {
  TemporaryDirectory directory;
  ASSERT_TRUE(CreateDirectories(directory.File("sub")).ok());
  Write(directory.File("small.yaml"), kSmallConfig);
  Write(directory.File("other.yaml"), "optimizer: {lr: 0.5, schedule: {type: cosine}}\n");
  Write(directory.File("sub/middle.yaml"),
        "base: [../small.yaml, ../other.yaml]\ntrain: {seed: 3}\n");
  Write(directory.File("top.yaml"),
        "base: sub/middle.yaml\noptimizer: {adam_lr: 0.25, schedule: null}\n");
  const auto loaded = LoadConfig(directory.File("top.yaml"), {"train.seed=9"});
  OT_ASSERT_OK(loaded);
  EXPECT_EQ(loaded->config.optimizer.lr, 0.5);  // the later base lies over the earlier one
  EXPECT_EQ(loaded->config.optimizer.adam_lr, 0.25);
  EXPECT_EQ(loaded->config.train.seed, 9u);
  EXPECT_EQ(loaded->config.model.hidden_size, 32);
  // null removed the inherited block, so that its keys have their defaults again.
  EXPECT_EQ(loaded->config.optimizer.schedule.type, ScheduleConfig::Type::kLinear);
  EXPECT_EQ(loaded->Where("optimizer.lr"), directory.File("other.yaml") + ":1: optimizer.lr");
}

TEST(Load, BasesThatCannotBe) {
  TemporaryDirectory directory;
  Write(directory.File("a.yaml"), "base: b.yaml\n");
  Write(directory.File("b.yaml"), "base: ./a.yaml\n");
  OT_EXPECT_ERROR(LoadConfig(directory.File("a.yaml"), {}), "b.yaml:1: base: ");
  OT_EXPECT_ERROR(LoadConfig(directory.File("a.yaml"), {}), "is based on itself");
  Write(directory.File("c.yaml"), "train: {seed: 1}\nbase: missing.yaml\n");
  OT_EXPECT_ERROR(LoadConfig(directory.File("c.yaml"), {}), "c.yaml:2: base: ");
  OT_EXPECT_ERROR(LoadConfig(directory.File("c.yaml"), {}), "missing.yaml");
  Write(directory.File("d.yaml"), "base: {x: 1}\n");
  OT_EXPECT_ERROR(LoadConfig(directory.File("d.yaml"), {}), "expected a file or a list of files");
  OT_EXPECT_ERROR(LoadConfig(directory.File("nothing.yaml"), {}), "nothing.yaml");
  // The same file twice is no cycle.
  Write(directory.File("small.yaml"), kSmallConfig);
  Write(directory.File("e.yaml"), "base: [small.yaml, small.yaml]\n");
  OT_EXPECT_ERROR(LoadConfig(directory.File("e.yaml"), {"train.seed=x"}), "train.seed");
  OT_ASSERT_OK(LoadConfig(directory.File("e.yaml"), {}));
}

TEST(Load, ErrorsInABaseNameTheBase) {
  TemporaryDirectory directory;
  Write(directory.File("small.yaml"), std::string(kSmallConfig) + "loss:\n  z_loss: yes\n");
  Write(directory.File("top.yaml"), "base: small.yaml\n");
  OT_EXPECT_ERROR(LoadConfig(directory.File("top.yaml"), {}),
                  "small.yaml:16: loss.z_loss: \"yes\" is not valid");
}

}  // namespace
}  // namespace overtok
