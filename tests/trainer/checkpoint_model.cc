#include "tests/trainer/checkpoint_model.h"

#include <cstring>

#include "core/io/hash.h"
#include "gtest/gtest.h"

namespace overtok::testing {
namespace {

// The bits of element `p`: never zero, and different from its neighbours'.
uint64_t Bits(const std::string& name, int64_t p, uint64_t salt) {
  const uint64_t seed = Xxh3(name.data(), static_cast<int64_t>(name.size()), salt);
  return Xxh3(&p, sizeof(p), seed) | 1;
}

void FillTensor(const ShardedTensor& entry, uint64_t salt) {
  const auto size = static_cast<size_t>(SizeOf(entry.tensor.dtype()));
  char* data = static_cast<char*>(entry.tensor.raw());
  ForEachRun(entry.region, [&](int64_t logical, int64_t place, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t bits = Bits(entry.name, logical + i, salt);
      std::memcpy(data + static_cast<size_t>(place + i) * size, &bits, size);
    }
  });
}

}  // namespace

void CheckpointModel::Add(std::vector<ShardedTensor>* to, const std::string& name, DType dtype,
                          const Region& region) {
  const auto bytes = static_cast<size_t>(region.count * SizeOf(dtype));
  buffers_.push_back(std::make_unique<char[]>(bytes + 1));
  std::memset(buffers_.back().get(), 0xff, bytes);
  to->push_back({name, region, Tensor(buffers_.back().get(), dtype, {region.count})});
}

void CheckpointModel::AddAll(const Layout& layout, bool owned) {
  // A part that all data ranks hold: whole, or this data rank's range of it.
  const auto held = [&](const Shape& shape, const Sharding& sharding) {
    Region region = Region::Part(shape, sharding);
    if (owned) {
      const int64_t all = region.count;
      region.begin = all * layout.data_rank / layout.data;
      region.count = all * (layout.data_rank + 1) / layout.data - region.begin;
    }
    return region;
  };
  // A whole matrix of one owner; the others hold parts of its value and nothing of its state.
  const auto whole = [&](const std::string& name, const Shape& shape, const Sharding& sharding,
                         int owner) {
    const bool mine = layout.world_rank() == owner % layout.world();
    if (!owned) Add(&model, name, DType::kF32, Region::Part(shape, sharding));
    if (!mine) return;
    Add(&model, name, DType::kF32, Region::Part(shape, {}));
    Add(&optimizer, "muonh.momentum/" + name, DType::kF32, Region::Part(shape, {}));
  };
  const int64_t parts = layout.tensor, part = layout.tensor_rank;
  const Sharding blocks{layout.vocabulary, parts, part, 1};
  const Sharding columns{Split::kColumns, parts, part, 13};
  const Sharding rows{Split::kRows, parts, part, 12};
  const Sharding scattered{Split::kScattered, layout.world(), layout.world_rank(), 1};

  Add(&model, "embed.weight", DType::kF32, held({101, 56}, blocks));
  Add(&optimizer, "adam.v/embed.weight", DType::kF32, held({101, 56}, blocks));
  whole("layers.0.attn.q.weight", {48, 56}, rows, 1);
  whole("layers.0.attn.o.weight", {56, 48}, {Split::kColumns, parts, part, 12}, 2);
  Add(&model, "lm_head.weight", DType::kF32, held({37, 130}, columns));
  Add(&optimizer, "adamh.m/lm_head.weight", DType::kF64, held({37, 130}, columns));
  // A vector that all ranks hold: ranges over the data ranks of tensor rank 0.
  if (!owned || layout.tensor_rank == 0) Add(&model, "norm.weight", DType::kF32, held({56}, {}));
  Add(&model, "tables.2.weight", DType::kBF16, Region::Part({1000, 8}, scattered));
  Add(&optimizer, "table.m/tables.2.weight", DType::kF32, Region::Part({1000, 8}, scattered));
  Add(&optimizer, "table.last/tables.2.weight", DType::kU32, Region::Part({1000}, scattered));
}

void CheckpointModel::Fill(uint64_t salt) {
  for (const auto* tensors : {&model, &optimizer}) {
    for (const ShardedTensor& entry : *tensors) FillTensor(entry, salt);
  }
}

CheckpointModel CheckpointModel::Owned(const Layout& layout, uint64_t salt) {
  CheckpointModel model;
  model.AddAll(layout, true);
  model.Fill(salt);
  return model;
}

CheckpointModel CheckpointModel::Wanted(const Layout& layout) {
  CheckpointModel model;
  model.AddAll(layout, false);
  return model;
}

std::string CheckpointModel::FirstDifference(uint64_t salt) const {
  for (const auto* tensors : {&model, &optimizer}) {
    for (const ShardedTensor& entry : *tensors) {
      const auto bytes = static_cast<size_t>(entry.tensor.bytes());
      std::vector<char> expected(bytes + 1);
      FillTensor({entry.name, entry.region,
                  Tensor(expected.data(), entry.tensor.dtype(), {entry.region.count})},
                 salt);
      if (std::memcmp(expected.data(), entry.tensor.raw(), bytes) != 0) return entry.name;
    }
  }
  return "";
}

TrainingState SomeState(int64_t step) {
  TrainingState state;
  state.step = step;
  state.sequences = 8 * step;
  state.tokens = 128 * step;
  state.ids_hash = 0xfedcba9876543210u + static_cast<uint64_t>(step);
  state.metrics_bytes = 1000 + step;
  state.evaluated_step = step - 1;
  state.best = BestValue{"eval/held_out/macro_loss", 0.1 + 1.0 / 3.0, step - 1};
  state.threads = 2;
  state.data_ranks = 3;
  state.tensor_ranks = 2;
  state.data.tokenizer_name = "bytes";
  state.data.vocab_size = 258;
  state.data.eos = 257;
  state.data.form.space_before_eos = true;
  state.identity = {{"model.hidden_size", "32"}, {"data.order.seed", "42"}};
  return state;
}

void ExpectOk(const absl::Status& status) { EXPECT_TRUE(status.ok()) << status.ToString(); }

}  // namespace overtok::testing
