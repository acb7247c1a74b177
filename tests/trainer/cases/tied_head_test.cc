// Exports of tied models left an empty head behind, and importers took every model for tied: the
// flag, the list of tensors and the index have to agree, and an untied model without its head is an
// error.
#include "absl/strings/str_replace.h"
#include "core/io/safetensors_writer.h"
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
using ::overtok::testing::StoredName;
using ::overtok::testing::TemporaryDirectory;

absl::Status Load(const TemporaryDirectory& directory, const ModelConfig& model, RankPart* part) {
  return LoadInitialWeights(directory.path(), model, NewParameters::kRefuse, part->tensors)
      .status();
}

TEST(TiedHead, WrittenAndReadWithAnyOneTensorMissing) {
  for (const bool tied : {true, false}) {
    const ModelConfig model = SmallQwen3(4, 1, tied);
    const StoredModel stored = Store(model);
    const TemporaryDirectory directory;
    OT_ASSERT_OK(stored.Write(directory.path()));  // for config.json; the weights are replaced
    RankPart part = PartOfRank(model, 1, 0, Split::kBlocks);
    OT_ASSERT_OK(Load(directory, model, &part));
    const auto write = [&](const std::string& without) {
      std::vector<TensorToStore> tensors;
      for (const ShardedTensor& tensor : part.tensors) {
        if (tensor.name == without) continue;
        tensors.push_back({StoredName(tensor.name), StoredType::kF32, tensor.tensor});
      }
      return WriteSafetensors(directory.File("model.safetensors"), tensors);
    };
    OT_ASSERT_OK(write(""));
    RankPart again = PartOfRank(model, 1, 0, Split::kBlocks);
    OT_ASSERT_OK(Load(directory, model, &again));
    EXPECT_EQ(again.buffers, part.buffers);
    EXPECT_EQ(part.tensors.back().name == "lm_head.weight", !tied);
    for (const ShardedTensor& tensor : part.tensors) {
      OT_ASSERT_OK(write(tensor.name));
      const absl::Status status = Load(directory, model, &again);
      OT_EXPECT_ERROR(status, "1 differences:\n  " + StoredName(tensor.name) + ": missing");
      if (tensor.name == "lm_head.weight") {
        OT_EXPECT_ERROR(status, "model.tie_word_embeddings is false");
      }
    }
  }
}

TEST(TiedHead, TheFlagsHaveToAgree) {
  for (const bool tied : {true, false}) {
    const TemporaryDirectory directory;
    OT_ASSERT_OK(Store(SmallQwen3(4, 1, tied)).Write(directory.path()));
    const ModelConfig other = SmallQwen3(4, 1, !tied);
    RankPart part = PartOfRank(other, 1, 0, Split::kBlocks);
    const absl::Status status = Load(directory, other, &part);
    OT_EXPECT_ERROR(status, tied ? "model.tie_word_embeddings is false, tie_word_embeddings in the "
                                   "file is true"
                                 : "model.tie_word_embeddings is true, tie_word_embeddings in the "
                                   "file is false");
  }
}

TEST(TiedHead, AStoredHeadIsTheEmbeddingOrAnError) {
  const ModelConfig model = SmallQwen3(4, 1, true);
  const TemporaryDirectory directory;
  StoredModel stored = Store(model);
  stored.shapes["lm_head.weight"] = {101, 48};
  OT_ASSERT_OK(stored.Write(directory.path(), 2));
  RankPart part = PartOfRank(model, 2, 0, Split::kBlocks);
  OT_ASSERT_OK(Load(directory, model, &part));

  stored.changed["lm_head.weight"][70 * 48 + 3] = 0.5;  // row 70 is of rank 1
  OT_ASSERT_OK(stored.Write(directory.path(), 2));
  OT_ASSERT_OK(Load(directory, model, &part));
  part = PartOfRank(model, 2, 1, Split::kBlocks);
  OT_EXPECT_ERROR(Load(directory, model, &part),
                  "lm_head.weight: element [70, 3] differs from that of "
                  "model.embed_tokens.weight, and model.tie_word_embeddings is true");

  stored.changed.clear();
  stored.shapes["lm_head.weight"] = {0, 48};  // the empty one
  OT_ASSERT_OK(stored.Write(directory.path(), 2));
  OT_EXPECT_ERROR(Load(directory, model, &part), "lm_head.weight: shape [0, 48]");
}

}  // namespace
}  // namespace overtok
