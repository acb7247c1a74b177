// The ops of `overtok bench ops`: all kinds of ops, at the sizes of the published recipes; and what
// the program prints of them.
#include "tools/op_cases.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/cuda/emulation/device.h"
#include "core/ops/kernels.h"
#include "core/ops/profile.h"
#include "tests/support/temporary_directory.h"
#include "trainer/config/load.h"
#include "trainer/counting_device.h"

namespace overtok {
namespace {

OpShapes Named(const std::string& name) {
  absl::StatusOr<OpShapes> shapes = OpShapesNamed(name);
  OT_CHECK(shapes.ok()) << std::string(shapes.status().message());
  return *std::move(shapes);
}

TEST(OpCasesTest, EveryKindOfOpIsThereAtEverySize) {
  for (const std::string& size : OpShapeNames()) {
    std::set<std::string> kinds;
    for (const OpCase& op : OpCases(Named(size))) {
      Memory memory(Memory::Mode::kReal, CountingDevice());
      Operands operands(&memory, /*fill=*/false);
      const OpCall call = op.prepare(operands);
      Context context(CountingDevice());
      memory.Commit(&context);
      ResetProfile();
      call.run(context);
      const std::vector<OpTime> ops = ReadProfile();
      ASSERT_EQ(ops.size(), 1u) << op.name;
      EXPECT_GT(ops[0].work.all_bytes(), 0) << op.name;
      EXPECT_EQ(ops[0].work.flops > 0, ops[0].work.products()) << op.name;
      kinds.insert(ops[0].name.substr(0, ops[0].name.find(' ')));
    }
    EXPECT_EQ(kinds.size(), sizeof(Kernels) / sizeof(void*)) << size;
  }
}

TEST(OpCasesTest, SizesAreThoseOfTheRecipes) {
  for (const std::string& size : OpShapeNames()) {
    if (size == "small") continue;
    const OpShapes shapes = Named(size);
    const auto loaded =
        LoadConfig(absl::StrCat(OVERTOK_SOURCE_DIR, "/configs/recipes/", size, ".yaml"), {},
                   {absl::StrCat(OVERTOK_SOURCE_DIR, "/configs/arms/ot_h_ss.yaml")});
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    const Config& config = loaded->config;
    EXPECT_EQ(shapes.batch, config.train.micro_batch_sequences) << size;
    EXPECT_EQ(shapes.length, config.data.sequence_length) << size;
    EXPECT_EQ(shapes.width, config.model.hidden_size) << size;
    EXPECT_EQ(shapes.inner, config.model.intermediate_size) << size;
    EXPECT_EQ(shapes.heads, config.model.num_attention_heads) << size;
    EXPECT_EQ(shapes.kv_heads, config.model.num_key_value_heads) << size;
    EXPECT_EQ(shapes.head_width, config.model.head_dim) << size;
    EXPECT_EQ(shapes.layers, config.model.num_hidden_layers) << size;
    EXPECT_EQ(shapes.vocabulary, config.model.vocab_size) << size;
    EXPECT_EQ(shapes.candidates, config.loss.sampled_softmax->stages[0].candidates) << size;
    EXPECT_EQ(shapes.table_width, config.model.ngram_embedding->width) << size;
  }
}

// Rows that a call has brought up to date stand where they stood before the next one, and ids, the
// order of sums and the schedule reach the device.
TEST(OpCasesTest, TablesAreUpdatedAgainAndAgainOnADevice) {
  OpShapes shapes = Named("small");
  shapes.table_rows = 256;
  shapes.table_width = 8;
  shapes.touched = 32;
  std::vector<OpCase> cases;
  AddTableRowOps(shapes, &cases);
  ASSERT_EQ(cases.size(), 4u);
  for (const OpCase& op : cases) {
    Memory memory(Memory::Mode::kReal, EmulatedDevice());
    Operands operands(&memory, /*fill=*/true);
    const OpCall call = op.prepare(operands);
    Context context(EmulatedDevice());
    memory.Commit(&context);
    context.SendInputs(InputGroup::kStep);
    for (int i = 0; i < 3; ++i) {
      if (call.reset != nullptr) call.reset(context);
      call.run(context);  // aborts on a row that reflects another step
    }
  }
}

class BenchOps : public ::testing::Test {
 protected:
  nlohmann::json Run(const std::string& options) {
    const std::string out = directory_.File("out");
    const int status = std::system(absl::StrCat(OVERTOK_PROGRAM, " bench ops --json --hardware ",
                                                OVERTOK_SOURCE_DIR, "/configs/hardware/h200.yaml ",
                                                options, " > ", out)
                                       .c_str());
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << options;
    std::ifstream text(out);
    return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  }

 private:
  testing::TemporaryDirectory directory_;
};

TEST_F(BenchOps, PredictsAllSizesWithoutADevice) {
  const nlohmann::json json = Run("--predict --shape all");
  ASSERT_TRUE(json.is_object());
  EXPECT_GT(json["ops"].size(), 4 * sizeof(Kernels) / sizeof(void*));
  std::set<std::string> models;
  for (const auto& op : json["ops"]) {
    models.insert(op["model"]);
    EXPECT_GT(op["milliseconds"].get<double>(), 0) << op.dump();
    EXPECT_EQ(op["of_ceiling"].get<double>(), 1.0) << op.dump();
    if (op["model"] != "300m" || op["name"] != "attention_forward") continue;
    // 2 products of 64 over half of 4096 x 4096 scores of 32 x 12 heads, at 284 TFLOP/s.
    const double ms = 2 * 2.0 * 64 * 4096 * 4097 / 2 * 32 * 12 / 284e12 * 1e3;
    EXPECT_TRUE(std::abs(op["milliseconds"].get<double>() - ms) <= 1e-9 * ms) << op.dump();
  }
  EXPECT_EQ(models, (std::set<std::string>{"130m", "300m", "520m", "1_2b"}));
}

TEST_F(BenchOps, MeasuresOnTheEmulatedDevice) {
  const nlohmann::json json = Run("--device emulated --only weighted_sum --seconds 0.001");
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["device"], "emulated");
  ASSERT_EQ(json["ops"].size(), 1u);
  EXPECT_GT(json["ops"][0]["milliseconds"].get<double>(), 0);
  EXPECT_LT(json["ops"][0]["of_ceiling"].get<double>(), 1);  // of an H200
}

}  // namespace
}  // namespace overtok
