#include <cmath>
#include <limits>

#include "absl/strings/str_replace.h"
#include "core/io/files.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/stored_model.h"
#include "trainer/initial_weights.h"

namespace overtok {
namespace {

using ::overtok::testing::PartOfRank;
using ::overtok::testing::RankPart;
using ::overtok::testing::SmallQwen3;
using ::overtok::testing::Store;
using ::overtok::testing::StoredModel;
using ::overtok::testing::TemporaryDirectory;

absl::Status Open(const TemporaryDirectory& directory, const ModelConfig& model) {
  return InitialWeights::Open(directory.path(), model, NewParameters::kRefuse).status();
}

TEST(InitialWeightsErrors, ListsAllDifferencesAtOnce) {
  const TemporaryDirectory directory;
  const ModelConfig model = SmallQwen3(4, 1, false);
  StoredModel stored = Store(model);
  stored.shapes.erase("model.layers.1.mlp.up_proj.weight");
  stored.shapes["model.layers.2.mlp.up_proj.weight"] = {56, 48};
  stored.shapes["model.layers.0.self_attn.o_proj.weight"] = {32, 48};  // transposed
  stored.shapes["model.norm.weight"] = {48, 1};
  stored.types["model.layers.0.input_layernorm.weight"] = "I32";
  stored.config = absl::StrReplaceAll(
      stored.config,
      {{"\"hidden_size\": 48", "\"hidden_size\": 64"}, {"1e-06", "1e-05"}, {"500000.0", "10000"}});
  OT_ASSERT_OK(stored.Write(directory.path()));
  const absl::Status status = Open(directory, model);
  for (const char* part :
       {"model.safetensors: does not fit the section model, 8 differences",
        "config.json: model.hidden_size is 48, hidden_size in the file is 64",
        "config.json: model.rope_theta is 500000.0, rope_theta in the file is 10000",
        "config.json: model.rms_norm_eps is 1e-06, rms_norm_eps in the file is 1e-05",
        "model.layers.1.mlp.up_proj.weight: missing, expected [56, 48] for "
        "layers.1.mlp.up_proj.weight",
        "model.layers.2.mlp.up_proj.weight: [56, 48] in ",
        "model.layers.0.self_attn.o_proj.weight: shape [32, 48] in ", "expected [48, 32]",
        "model.norm.weight: shape [48, 1]", "model.layers.0.input_layernorm.weight: type I32"}) {
    OT_EXPECT_ERROR(status, part);
  }
}

TEST(InitialWeightsErrors, ConfigJsonHasToBeThere) {
  const TemporaryDirectory directory;
  const ModelConfig model = SmallQwen3(4, 1, false);
  OT_ASSERT_OK(Store(model).Write(directory.path()));
  OT_ASSERT_OK(RemoveTree(directory.File("config.json")));
  OT_EXPECT_ERROR(Open(directory, model), "config.json: missing");
}

TEST(InitialWeightsErrors, ValuesHaveToBeFinite) {
  const ModelConfig model = SmallQwen3(4, 1, false);
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity(), -1e300}) {
    const TemporaryDirectory directory;
    StoredModel stored = Store(model);
    const std::string name = "model.layers.1.mlp.down_proj.weight";
    stored.types[name] = "F64";
    stored.changed[name][5 * 56 + 40] = bad;
    OT_ASSERT_OK(stored.Write(directory.path()));
    const auto weights = InitialWeights::Open(directory.path(), model, NewParameters::kRefuse);
    OT_ASSERT_OK(weights);
    // Columns 0 to 27 are sound.
    const RankPart first = PartOfRank(model, 2, 0, Split::kBlocks);
    OT_ASSERT_OK(weights->Fill(first.tensors));
    const RankPart second = PartOfRank(model, 2, 1, Split::kBlocks);
    for (const int64_t buffer : {int64_t{64}, int64_t{1} << 20}) {
      OT_EXPECT_ERROR(weights->Fill(second.tensors, buffer),
                      name + ": element [5, 40] (F64) is no finite f32 number");
    }
  }
}

}  // namespace
}  // namespace overtok
