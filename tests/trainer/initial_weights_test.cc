// Parts of a checkpoint, read by the ranks of a tensor group one after another: together they are
// the whole, and each rank has read its own bytes only.
#include "trainer/initial_weights.h"

#include <map>
#include <string>
#include <vector>

#include "core/memory.h"
#include "core/parameter.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/stored_model.h"

namespace overtok {
namespace {

using ::overtok::testing::PartOfRank;
using ::overtok::testing::RankPart;
using ::overtok::testing::SmallQwen3;
using ::overtok::testing::Store;
using ::overtok::testing::StoredModel;
using ::overtok::testing::StoredName;
using ::overtok::testing::TemporaryDirectory;

constexpr int64_t kDefaultBuffer = int64_t{32} << 20;

// How many ranks hold each element; checks the values on the way, by the functions of single
// indices rather than those of runs.
void CheckValues(const StoredModel& stored, const RankPart& part,
                 std::map<std::string, std::vector<int>>* holders) {
  for (const ShardedTensor& tensor : part.tensors) {
    const Region& region = tensor.region;
    const Sharding& sharding = region.sharding;
    const int64_t n = DividedSize(sharding, region.logical);
    const int64_t width = region.logical.elements() / region.logical[0];
    const int64_t local_width = sharding.split == Split::kColumns ? SizeOfPart(sharding, n) : width;
    std::vector<int>& held = (*holders)[tensor.name];
    held.resize(static_cast<size_t>(region.logical.elements()));
    for (int64_t i = 0; i < region.count; ++i) {
      const int64_t row = i / local_width, column = i % local_width;
      const int64_t element = sharding.split == Split::kColumns
                                  ? row * width + GlobalOf(sharding, n, column)
                                  : GlobalOf(sharding, n, row) * width + column;
      ++held[static_cast<size_t>(element)];
      ASSERT_EQ(tensor.tensor.data<float>()[i], stored.ValueOf(StoredName(tensor.name), element))
          << tensor.name << " element " << element;
    }
  }
}

struct Case {
  int64_t tensor, heads, kv_heads;
  Split vocabulary;
  bool tied;
  int files;
  int64_t buffer_bytes;
};

TEST(InitialWeights, PartsAreTheWholeAndNothingElseIsRead) {
  const std::vector<Case> cases = {
      {1, 4, 1, Split::kBlocks, false, 1, kDefaultBuffer},
      {2, 4, 1, Split::kBlocks, false, 1, kDefaultBuffer},
      {4, 4, 1, Split::kBlocks, false, 3, kDefaultBuffer},  // K = 1 on 4; two ranks without rows
      {4, 4, 2, Split::kRows, true, 1, kDefaultBuffer},
      {3, 6, 3, Split::kRows, false, 2, 4000},  // m = 56 over 3
      {4, 4, 1, Split::kBlocks, true, 1, 64},   // pieces of 4 elements
  };
  for (const Case& c : cases) {
    const TemporaryDirectory directory;
    const ModelConfig model = SmallQwen3(c.heads, c.kv_heads, c.tied);
    StoredModel stored = Store(model);
    OT_ASSERT_OK(stored.Write(directory.path(), c.files));
    std::map<std::string, std::vector<int>> holders;
    for (int64_t rank = 0; rank < c.tensor; ++rank) {
      const RankPart part = PartOfRank(model, c.tensor, rank, c.vocabulary);
      const auto weights = InitialWeights::Open(directory.path(), model, NewParameters::kRefuse);
      OT_ASSERT_OK(weights);
      const auto filled = weights->Fill(part.tensors, c.buffer_bytes);
      OT_ASSERT_OK(filled);
      EXPECT_EQ(filled->bytes_read, part.bytes) << c.tensor << " ranks, rank " << rank;
      EXPECT_TRUE(filled->drawn.empty());
      if (c.tensor == 1) {
        EXPECT_EQ(filled->bytes_read, filled->file_bytes);
      } else {
        EXPECT_LT(filled->bytes_read, filled->file_bytes);
      }
      EXPECT_GE(filled->seconds, filled->waited);
      CheckValues(stored, part, &holders);
    }
    ASSERT_EQ(holders.size(), stored.shapes.size());
    for (const auto& [name, held] : holders) {
      const bool gain = name.find("norm") != std::string::npos;
      const bool kv =
          name.find(".k_proj") != std::string::npos || name.find(".v_proj") != std::string::npos;
      const int64_t ranks = gain                          ? c.tensor
                            : kv && c.kv_heads < c.tensor ? c.tensor / c.kv_heads
                                                          : 1;
      for (const int count : held) ASSERT_EQ(count, ranks) << name;
    }
  }
}

// What checkpoints and optimizers divide further: any range of a part.
TEST(InitialWeights, FillsRangesOfAPart) {
  const TemporaryDirectory directory;
  const ModelConfig model = SmallQwen3(4, 1, false);
  const StoredModel stored = Store(model);
  OT_ASSERT_OK(stored.Write(directory.path()));
  const auto weights = InitialWeights::Open(directory.path(), model, NewParameters::kRefuse);
  OT_ASSERT_OK(weights);
  // Columns 28 to 55 of [48, 56]: elements 30 to 89 of that part.
  Region region = Region::Part({48, 56}, {Split::kColumns, 2, 1, 1});
  region.begin = 30;
  region.count = 60;
  std::vector<float> values(60, -1.0F);
  const auto filled =
      weights->Fill({{"layers.1.mlp.down_proj.weight", region, Tensor(values.data(), {60})}});
  OT_ASSERT_OK(filled);
  EXPECT_EQ(filled->bytes_read, 240);
  for (int64_t i = 0; i < 60; ++i) {
    const int64_t row = (30 + i) / 28, column = 28 + (30 + i) % 28;
    ASSERT_EQ(values[static_cast<size_t>(i)],
              stored.ValueOf("model.layers.1.mlp.down_proj.weight", row * 56 + column));
  }
}

// The parts that a model's own parameters have.
TEST(InitialWeights, FillsParametersOfEveryPlacement) {
  const TemporaryDirectory directory;
  const ModelConfig model = SmallQwen3(4, 1, true);
  const StoredModel stored = Store(model);
  OT_ASSERT_OK(stored.Write(directory.path()));
  for (int rank = 0; rank < 4; ++rank) {
    Memory memory(Memory::Mode::kReal);
    ParameterSet parameters(&memory, DType::kF32, /*with_gradients=*/false, {},
                            Layout::Of(4, rank, 4));
    const auto add = [&](const char* name, Shape shape, Placement placement, int64_t groups) {
      ParameterSpec spec;
      spec.name = name;
      spec.shape = shape;
      spec.placement = placement;
      spec.group = OptimizerGroup::kAdam;
      spec.initializer = Initializer::kOnes;
      spec.scale = 1;
      spec.groups = groups;
      parameters.Add(spec, false);
    };
    add("embed.weight", {101, 48}, Placement::kVocabularyRows, 0);
    add("layers.0.attn.q_norm.weight", {8}, Placement::kReplicated, 0);
    add("layers.0.attn.q_proj.weight", {32, 48}, Placement::kTensorRows, 4);
    add("layers.1.attn.k_proj.weight", {8, 48}, Placement::kTensorRows, 1);
    add("layers.1.attn.o_proj.weight", {48, 32}, Placement::kTensorColumns, 4);
    add("layers.1.mlp.down_proj.weight", {48, 56}, Placement::kTensorColumns, 0);
    parameters.Initialize(1);
    RankPart part;
    part.tensors = parameters.values();
    const auto filled =
        LoadInitialWeights(directory.path(), model, NewParameters::kRefuse, part.tensors);
    OT_ASSERT_OK(filled);
    EXPECT_EQ(filled->tensors, rank < 2 ? 6 : 5) << "101 rows are two blocks";
    std::map<std::string, std::vector<int>> holders;
    CheckValues(stored, part, &holders);
  }
}

TEST(InitialWeights, NewParametersKeepTheirValues) {
  const TemporaryDirectory directory;
  ModelConfig model = SmallQwen3(4, 1, false);
  OT_ASSERT_OK(Store(model).Write(directory.path()));
  model.hybrid_norm = true;
  model.second_token_head.emplace();
  std::vector<float> out_norm(48, 1.0F), head(101 * 48, 0.25F), gain(48, 1.0F), copy(48, 0.0F);
  const std::vector<ShardedTensor> wanted = {
      {"layers.0.attn_out_norm.weight", Region::Part({48}, {}), Tensor(out_norm.data(), {48})},
      {"head2.lm_head.weight", Region::Part({101, 48}, {}), Tensor(head.data(), {101, 48})},
      {"final_norm.weight", Region::Part({48}, {}), Tensor(gain.data(), {48})},
      // Some parameters twice: what is updated is a copy of its own.
      {"layers.0.attn_out_norm.weight", Region::Part({48}, {}), Tensor(out_norm.data(), {48})},
      {"final_norm.weight", Region::Part({48}, {}), Tensor(copy.data(), {48})}};
  const auto filled = LoadInitialWeights(directory.path(), model, NewParameters::kDraw, wanted);
  OT_ASSERT_OK(filled);
  EXPECT_THAT(filled->drawn,
              ::testing::ElementsAre("layers.0.attn_out_norm.weight", "head2.lm_head.weight"));
  EXPECT_EQ(filled->tensors, 2);
  EXPECT_EQ(copy, gain);
  EXPECT_THAT(out_norm, ::testing::Each(1.0F));
  EXPECT_THAT(head, ::testing::Each(0.25F));
  EXPECT_NE(gain[0], 1.0F);
  const auto refused = LoadInitialWeights(directory.path(), model, NewParameters::kRefuse, wanted);
  OT_EXPECT_ERROR(refused, "2 differences");
  OT_EXPECT_ERROR(refused, "model.hybrid_norm (layers.*.attn_out_norm.weight");
  OT_EXPECT_ERROR(refused, "model.second_token_head (head2.proj.weight, head2.lm_head.weight)");
}

}  // namespace
}  // namespace overtok
